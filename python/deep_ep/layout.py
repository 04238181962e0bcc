# SPDX-License-Identifier: Apache-2.0
"""What a table of expert ids means for a rank by itself: who gets how many tokens, and the matrices
that DeepEP keeps by channel. Plain torch, without a word to other ranks."""

from typing import Optional, Tuple

import torch

topk_idx_t = torch.int64


def get_dispatch_layout(
    topk_idx: torch.Tensor, num_experts: int, num_ranks: int, node_ranks: int
) -> Tuple[torch.Tensor, Optional[torch.Tensor], torch.Tensor, torch.Tensor]:
    """(tokens for each rank, for each node or None, choices of each expert, [tokens, ranks] who
    gets a token). A token counts once for a rank and for a node."""
    assert topk_idx.dim() == 2, f"topk_idx has shape {list(topk_idx.shape)}: it must be a matrix"
    assert num_experts % num_ranks == 0, f"{num_experts} experts cannot be shared by {num_ranks}"
    num_tokens, device = topk_idx.shape[0], topk_idx.device
    ids = topk_idx.long()
    ids = ids.masked_fill((ids < 0) | (ids >= num_experts), num_experts)  # ids of nobody
    per_expert = torch.zeros(num_experts + 1, dtype=torch.int32, device=device)
    flat = ids.reshape(-1)
    per_expert.scatter_add_(0, flat, torch.ones_like(flat, dtype=torch.int32))
    reached = torch.zeros((num_tokens, num_ranks + 1), dtype=torch.bool, device=device)
    reached.scatter_(1, ids // (num_experts // num_ranks), True)
    is_token_in_rank = reached[:, :num_ranks].contiguous()
    per_rank = is_token_in_rank.sum(0, dtype=torch.int32)
    per_node = None
    if has_nodes(num_ranks, node_ranks):
        per_node = by_node(is_token_in_rank, node_ranks).sum(0, dtype=torch.int32)
    return per_rank, per_node, per_expert[:num_experts], is_token_in_rank


def has_nodes(num_ranks: int, node_ranks: int) -> bool:
    """Whether the internode forms apply: more than one node, all of them full."""
    return num_ranks > node_ranks and num_ranks % node_ranks == 0


def by_node(is_token_in_rank: torch.Tensor, node_ranks: int) -> torch.Tensor:
    """[tokens, nodes]: whether any rank of the node gets the token."""
    num_tokens, num_ranks = is_token_in_rank.shape
    return is_token_in_rank.view(num_tokens, num_ranks // node_ranks, node_ranks).any(2)


def channel_prefix(mask: torch.Tensor, num_channels: int) -> torch.Tensor:
    """[columns, channels]: how many rows of the mask [tokens, columns] are set up to the end of
    each channel. A channel has as many tokens as any other, the last ones fewer."""
    num_tokens, columns = mask.shape
    each = -(-num_tokens // num_channels)
    padded = torch.zeros((num_channels * each, columns), dtype=torch.int32, device=mask.device)
    padded[:num_tokens] = mask
    counts = padded.view(num_channels, each, columns).sum(1, dtype=torch.int32)
    return counts.cumsum(0, dtype=torch.int32).t().contiguous()


def queue_positions(mask: torch.Tensor, prefix: torch.Tensor) -> torch.Tensor:
    """[tokens, columns]: the place of each row that is set among those of its channel, else -1.
    prefix: the mask's channel_prefix."""
    num_tokens, num_channels = mask.shape[0], prefix.shape[1]
    each = max(1, -(-num_tokens // num_channels))
    channel = torch.arange(num_tokens, device=mask.device) // each
    begins = torch.nn.functional.pad(prefix[:, :-1], (1, 0))
    begin = begins.t()[channel]
    place = mask.cumsum(0, dtype=torch.int32) - 1 - begin
    return place.masked_fill(~mask, -1)


def check_statistics(
    stats: Optional[torch.Tensor], num_local_experts: int, device: torch.device
) -> None:
    """What a dispatch adds its counts to, before it is issued."""
    if stats is not None:
        have = stats.dtype, tuple(stats.shape), stats.device
        assert have == (torch.int32, (num_local_experts,), device), (
            f"cumulative_local_expert_recv_stats is {stats.dtype} {list(stats.shape)} on "
            f"{stats.device}: it must be int32 [{num_local_experts}] on {device}"
        )
