# SPDX-License-Identifier: Apache-2.0
"""Scores of a router that is out of balance: rank 0 gets more tokens than the others."""

import os
from typing import Tuple, Union

import torch

__all__ = ["get_unbalanced_scores"]

_STEPS = 24  # of the bisection


def get_unbalanced_scores(
    num_tokens: int,
    num_experts: int,
    num_ranks: int,
    num_topk: int,
    ratio: float,
    precise: Union[bool, int] = False,
) -> torch.Tensor:
    """FP32 [tokens, experts], of whose topk rank 0 gets `ratio` times the tokens of any other rank.
    precise: each token goes to the same number of ranks, and the others get equally many; else
    tokens choose at random, and the ratio is that of a large batch."""
    assert num_experts % num_ranks == 0, f"{num_experts} experts cannot be shared by {num_ranks}"
    assert ratio >= 1, f"the ratio is {ratio}: it must be at least 1"
    shape = num_tokens, num_ranks, num_experts // num_ranks
    if precise and num_ranks > 1:
        return _dealt(shape, num_topk, ratio).view(num_tokens, num_experts)
    keys = _random(*shape)
    return _weighted(keys, num_topk, ratio).view(num_tokens, num_experts)


def _random(*shape: int) -> torch.Tensor:
    on_gpu = torch.cuda.is_available() and os.getenv("TERN_MACHINE") != "cpu"
    return torch.rand(shape, dtype=torch.float32, device="cuda" if on_gpu else "cpu")


def _weighted(keys: torch.Tensor, num_topk: int, ratio: float) -> torch.Tensor:
    """Experts are drawn by weight, which a power of a uniform number does: those of rank 0 have the
    weight that makes the ratio."""

    def at(weight: float) -> torch.Tensor:
        scores = keys.clone()
        scores[:, 0] **= 1 / weight
        return scores

    if ratio == 1 or keys.shape[1] == 1:
        return keys
    low, high = 1.0, 1000.0
    for _ in range(_STEPS):
        middle = (low * high) ** 0.5
        reached = _reached(at(middle), num_topk)
        mean = float(reached[1:].float().mean())
        low, high = (low, middle) if float(reached[0]) > ratio * mean else (middle, high)
    return at(low)


def _reached(scores: torch.Tensor, num_topk: int) -> torch.Tensor:
    """[ranks]: tokens that go there."""
    tokens, ranks, share = scores.shape
    owners = scores.view(tokens, -1).topk(num_topk, 1).indices // share
    goes = torch.zeros((tokens, ranks), dtype=torch.bool, device=scores.device)
    return goes.scatter_(1, owners, True).sum(0)


def _dealt(shape: Tuple[int, int, int], num_topk: int, ratio: float) -> torch.Tensor:
    """Ranks are dealt to tokens, so many to each, and experts of a rank to the token's choices."""
    tokens, ranks, share = shape
    keys = _random(*shape)
    device = keys.device
    # As many as tokens that choose at random reach, within what the ratio leaves room for.
    most = min(num_topk, ranks, int((ranks - 1) / ratio) + 1)
    least = -(-num_topk // share)
    assert least <= most, f"top-{num_topk} of {share} experts a rank has no ratio of {ratio}"
    natural = round(ranks * (1 - (1 - 1 / ranks) ** num_topk))
    each = min(max(natural, least), most)
    first = round(tokens * min(1.0, ratio * each / (ranks - 1 + ratio)))
    with_first = torch.randperm(tokens, device=device) < first
    # The other ranks in turn, in an order of their own: neighbours in it are different.
    others = each - with_first.long()
    begins = others.cumsum(0) - others
    turn = torch.randperm(ranks - 1, device=device) + 1
    counts = torch.zeros((tokens, ranks), dtype=torch.long, device=device)
    counts[:, 0] = with_first * (num_topk // each)
    left = num_topk - counts[:, 0]
    for i in range(each):
        rank = turn[(begins + i) % (ranks - 1)]
        share_of = torch.div(
            left + (others - i - 1), (others - i).clamp(min=1), rounding_mode="floor"
        )
        share_of = share_of.masked_fill(i >= others, 0)
        counts.scatter_add_(1, rank[:, None], share_of[:, None])
        left = left - share_of
    counts[:, 0] += left  # of a token that goes to rank 0 alone
    place = keys.argsort(2).argsort(2)
    chosen = place < counts[:, :, None]
    return torch.where(chosen, 0.9 + 0.1 * keys, 0.8 * keys)
