# SPDX-License-Identifier: Apache-2.0
"""Handles of ElasticBuffer: what a dispatch was, and how many rows came from where for whom."""

from functools import cached_property
from typing import List, Optional, Tuple

import torch

import tern

from . import layout
from .config import NODE_RANKS
from .routes import Plan


class EPHandle:
    """Counts and sums are int32 tensors on the device. Those that operations need are made by the
    dispatch, the others when they are looked at, on the stream that is current then.

    num_recv_tokens, num_expanded_tokens: rows of a dispatch by rank and by expert; without a word
    to the host, what there was room for. num_recv_tokens_per_expert_list: aligned, [] without a
    word to the host. by_rank: behind expanded rows, the plan of the same tokens by rank.
    """

    # Of dispatches that are forwarded from node to node, which Tern's are not.
    token_metadata_at_forward = None
    channel_linked_list = None

    def __init__(
        self,
        plan: Plan,
        rank: int,
        do_expand: bool,
        num_max_tokens_per_rank: int,
        num_sms: int,
        topk_idx: torch.Tensor,
        num_recv_tokens: int,
        counts: List[int],
        told: torch.Tensor,
        tokens: tern.Rows,
        by_rank: Optional[Plan],
    ) -> None:
        """tokens: by rank, what came of which; their sources and ids."""
        assert tokens.source is not None and tokens.topk_idx is not None
        self.plan, self.by_rank = plan, by_rank
        self.do_expand = do_expand
        self.num_experts = plan.num_experts
        self.expert_alignment = plan.alignment
        self.num_max_tokens_per_rank = num_max_tokens_per_rank
        self.num_sms = num_sms
        self.topk_idx = topk_idx
        self.num_recv_tokens = num_recv_tokens
        self.num_expanded_tokens = plan.num_rows if do_expand else 0
        self.num_recv_tokens_per_expert_list = [self._aligned(number) for number in counts]
        self._rank, self._told = rank, told
        self.source, self.local_ids = tokens.source, tokens.topk_idx

    def _aligned(self, number: int) -> int:
        return -(-number // self.expert_alignment) * self.expert_alignment

    @cached_property
    def psum_num_recv_tokens_per_scaleup_rank(self) -> torch.Tensor:
        """[ranks]: tokens from each and those before."""
        return self._told[:, self._rank].cumsum(0, dtype=torch.int32)

    @cached_property
    def num_unaligned_recv_tokens_per_expert(self) -> torch.Tensor:
        """[local experts]"""
        ranks = self._told.shape[0]
        share = self.num_experts // ranks
        first = ranks + self._rank * share
        return self._told[:, first : first + share].sum(0, dtype=torch.int32)

    def _aligned_counts(self) -> torch.Tensor:
        counts, up = self.num_unaligned_recv_tokens_per_expert, self.expert_alignment
        return torch.div(counts + (up - 1), up, rounding_mode="floor") * up

    @cached_property
    def psum_num_recv_tokens_per_expert(self) -> torch.Tensor:
        """[local experts]: aligned counts of each and those before; expanded, the end of each
        one's rows."""
        aligned = self._aligned_counts()
        ends = aligned.cumsum(0, dtype=torch.int32)
        if not self.do_expand:
            return ends
        return ends - aligned + self.num_unaligned_recv_tokens_per_expert

    @cached_property
    def recv_src_metadata(self) -> torch.Tensor:
        """[tokens, 2 + topk]: the token's number among all ranks' (rank * most tokens + token),
        where its row goes home (rank * topk + its first choice here), and the expanded rows of its
        choices, or -1; tokens that are none are -1 throughout."""
        topk = self.local_ids.shape[1]
        rows = torch.arange(len(self.source), device=self.source.device)
        there = rows < self.psum_num_recv_tokens_per_scaleup_rank[-1]
        rank, token = self.source[:, 0], self.source[:, 1]
        choice = (self.local_ids >= 0).int().argmax(1)
        meta = torch.full((len(rows), 2 + topk), -1, dtype=torch.int32, device=rows.device)
        meta[:, 0] = (rank * self.num_max_tokens_per_rank + token).masked_fill(~there, -1)
        meta[:, 1] = (rank * topk + choice).masked_fill(~there, -1)
        if self.do_expand:
            meta[:, 2:] = self.expanded_rows
        return meta

    @cached_property
    def expanded_rows(self) -> torch.Tensor:
        """[tokens, topk]: where the rows of their choices lie, or -1. Those of an expert are in
        order of tokens, behind those of all experts before, each at its alignment."""
        share = self.num_experts // len(self._told)
        ids = self.local_ids.reshape(-1).long()
        ids = ids.masked_fill(ids < 0, share)
        by_expert = ids.sort(stable=True).indices
        place = torch.empty_like(by_expert)
        place[by_expert] = torch.arange(len(ids), device=ids.device)
        counts, aligned = self.num_unaligned_recv_tokens_per_expert, self._aligned_counts()
        padding = (aligned - counts).cumsum(0) - (aligned - counts)  # of the experts before
        padding = torch.nn.functional.pad(padding, (0, 1))
        rows = (place + padding[ids]).masked_fill(ids == share, -1)
        return rows.view(self.local_ids.shape)

    def check(self, x: torch.Tensor, weights: Optional[torch.Tensor]) -> None:
        """Rows for combine, before anything takes them: fewer would be sums without some of them.
        More than there are is well."""
        assert x.dtype == torch.bfloat16 and x.dim() == 2, (
            f"x is {x.dtype} {list(x.shape)}: it must be BF16 [rows, hidden]"
        )
        assert len(x) >= self.plan.num_rows, (
            f"x has {len(x)} rows: the handle has {self.plan.num_rows}"
        )
        columns = () if self.do_expand else (self.topk_idx.shape[1],)
        assert weights is None or weights.shape == (len(x), *columns), (
            f"topk_weights has shape {list(weights.shape)}: it must be {[len(x), *columns]}"
        )

    def fold(
        self, x: torch.Tensor, weights: Optional[torch.Tensor]
    ) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:
        """Expanded rows, and weights, as those of their tokens: rows added in FP32, in the order of
        choices, and rounded; a weight for each choice."""
        rows = self.expanded_rows
        there = rows >= 0
        if weights is not None:
            weights = weights[rows.clamp(min=0)].masked_fill(~there, 0)
        if not len(x):
            return x.new_zeros((len(rows), x.shape[1])), weights
        # A choice that is none stands for another of its token, times 0.
        rows = torch.where(there, rows, rows.amax(1, keepdim=True).clamp(min=0))
        if x.is_cuda:  # one kernel, which adds in this order
            factors = there.to(x.dtype)
            embedding_bag = torch.nn.functional.embedding_bag
            return embedding_bag(rows, x, mode="sum", per_sample_weights=factors), weights
        total = torch.zeros((len(rows), x.shape[1]), device=x.device, dtype=torch.float32)
        for choice in range(rows.shape[1]):
            total += x[rows[:, choice]].float().masked_fill(~there[:, choice, None], 0)
        return total.to(x.dtype), weights

    @cached_property
    def dst_buffer_slot_idx(self) -> torch.Tensor:
        """[this rank's tokens, topk]: the row that each choice's rank has of the token, by rank, or
        -1."""
        ranks = len(self._told)
        mask = layout.get_dispatch_layout(self.topk_idx, self.num_experts, ranks, NODE_RANKS)[3]
        begins = self._told[: self._rank, :ranks].sum(0)
        rows = begins + mask.cumsum(0) - 1
        ids = self.topk_idx.long()
        there = (ids >= 0) & (ids < self.num_experts)
        owners = ids.masked_fill(~there, 0) // (self.num_experts // ranks)
        return rows.gather(1, owners).masked_fill(~there, -1).int()
