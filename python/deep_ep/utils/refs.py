# SPDX-License-Identifier: Apache-2.0
"""What dispatch and combine of an ElasticBuffer bring, in plain torch: slow, and to compare with.

Every rank gets all tensors of all ranks, and takes what is its own.
"""

from typing import Any, List, Optional, Sequence, Tuple, Union

import torch
import torch.distributed as dist

from .envs import get_global_seed

__all__ = ["combine", "dispatch", "generate_pre_combine_data", "ordered_accumulate"]

Rows = Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]


def _of_all(mine: torch.Tensor, length: int, fill: int = 0) -> torch.Tensor:
    """[ranks, length, columns]: the matrices of all ranks, each filled up to the length."""
    room = torch.full(
        (length, mine.shape[1] * mine.element_size()), fill, dtype=torch.uint8, device=mine.device
    )
    room[: len(mine)] = mine.contiguous().view(torch.uint8)  # not all types travel
    every = [torch.empty_like(room) for _ in range(dist.get_world_size())]
    dist.all_gather(every, room)
    return torch.stack(every).view(mine.dtype)


def dispatch(
    x: Rows,
    topk_idx: torch.Tensor,
    topk_weights: Optional[torch.Tensor],
    num_max_tokens_per_rank: int,
    num_experts: int,
) -> Tuple[Rows, torch.Tensor, Optional[torch.Tensor], torch.Tensor, torch.Tensor]:
    """COLLECTIVE. What comes to this rank, by source rank and token: (rows, local ids or -1,
    weights, rank * most tokens + token of each row, rows from each rank)."""
    rank, most = dist.get_rank(), num_max_tokens_per_rank
    share = num_experts // dist.get_world_size()
    ids = _of_all(topk_idx, most, fill=255)  # -1, of any size
    local = ids - rank * share
    local = local.masked_fill((local < 0) | (local >= share), -1)
    comes = (local >= 0).any(2)

    def mine(tensor: torch.Tensor) -> torch.Tensor:
        raw = _of_all(tensor, most)
        return raw.view(torch.uint8)[comes].view(tensor.dtype)

    rows = tuple(map(mine, x)) if isinstance(x, (tuple, list)) else mine(x)
    weights = None if topk_weights is None else mine(topk_weights)
    source = comes.view(-1).nonzero().view(-1).int()
    return rows, local[comes], weights, source, comes.sum(1).int()


def generate_pre_combine_data(
    src_token_global_idx: torch.Tensor, num_max_tokens_per_rank: int, num_topk: int, hidden: int
) -> torch.Tensor:
    """BF16 [tokens, topk, hidden] from -1 to 1: numbers that follow from the token, as dispatch
    counts it, the choice, the channel and the seed alone."""
    device = src_token_global_idx.device
    choices = src_token_global_idx.long()[:, None] * num_topk + torch.arange(
        num_topk, device=device
    )
    turns = (choices * 2654435761 % 2**24).float() / 2**24
    channels = torch.arange(1, hidden + 1, dtype=torch.float32, device=device)
    return torch.cos(turns[:, :, None] * channels + get_global_seed()).bfloat16()


def ordered_accumulate(
    data: torch.Tensor, initial_value: Optional[torch.Tensor] = None
) -> torch.Tensor:
    """[tokens, columns]: of [tokens, choices, columns], added in the order of choices, in FP32, and
    rounded once."""
    begin = data.new_zeros((), dtype=torch.float32) if initial_value is None else initial_value
    return _total(data.unbind(1), begin).to(data.dtype)


def _total(parts: Sequence[torch.Tensor], total: Any) -> torch.Tensor:
    for part in parts:
        total = total + part.float()
    return total


def combine(
    y: torch.Tensor,
    topk_idx: torch.Tensor,
    num_scaleout_ranks: int,
    num_scaleup_ranks: int,
    num_experts: int,
    bias: Union[torch.Tensor, Sequence[torch.Tensor], None],
    reduce_in_local: bool,
    reduce_in_scaleup: bool,
) -> torch.Tensor:
    """Of this rank's tokens: biases and rows y [tokens, topk, hidden], added in FP32 and rounded
    once. reduce_in_local: what the choices of a rank come to is rounded on it, and ranks are added
    in their order; reduce_in_scaleup: what the ranks of a group come to is rounded there, too."""
    assert reduce_in_local or not reduce_in_scaleup, "groups add what ranks have rounded"
    num_ranks = num_scaleout_ranks * num_scaleup_ranks
    owners = topk_idx // (num_experts // num_ranks)
    parts: List[torch.Tensor] = list(y.unbind(1))
    if reduce_in_local:
        parts = [
            ordered_accumulate(y.masked_fill((owners != rank)[:, :, None], 0))
            for rank in range(num_ranks)
        ]
    if reduce_in_scaleup:
        parts = [
            _total(parts[first : first + num_scaleup_ranks], 0.0).to(y.dtype)
            for first in range(0, num_ranks, num_scaleup_ranks)
        ]
    biases = () if bias is None else (bias,) if isinstance(bias, torch.Tensor) else tuple(bias)
    return _total(parts, _total(biases, y.new_zeros((), dtype=torch.float32))).to(y.dtype)
