# SPDX-License-Identifier: Apache-2.0
"""Handles of ElasticBuffer: what a dispatch was, and how many rows came from where for whom."""

from functools import cached_property
from typing import List, Optional

import torch

import tern

from .routes import Plan


class EPHandle:
    """Counts and sums are int32 tensors on the device, made when they are looked at.

    num_recv_tokens, num_expanded_tokens: rows of a dispatch by rank and by expert; without a word
    to the host, what there was room for. num_recv_tokens_per_expert_list: aligned, [] without a
    word to the host.
    """

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
        source: Optional[torch.Tensor],
        local_ids: Optional[torch.Tensor],
    ) -> None:
        self.plan = plan
        self.do_expand = do_expand
        self.num_experts = plan.num_experts
        self.expert_alignment = plan.alignment
        self.num_max_tokens_per_rank = num_max_tokens_per_rank
        self.num_sms = num_sms
        self.topk_idx = topk_idx
        self.num_recv_tokens = num_recv_tokens
        self.num_expanded_tokens = plan.num_rows if do_expand else 0
        self.num_recv_tokens_per_expert_list = [self._aligned(number) for number in counts]
        self._rank, self._told, self._source, self._local_ids = rank, told, source, local_ids

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

    @cached_property
    def psum_num_recv_tokens_per_expert(self) -> torch.Tensor:
        """[local experts]: aligned counts of each and those before; expanded, the end of each
        one's rows."""
        counts = self.num_unaligned_recv_tokens_per_expert
        up = self.expert_alignment
        aligned = torch.div(counts + (up - 1), up, rounding_mode="floor") * up
        ends = aligned.cumsum(0, dtype=torch.int32)
        return ends - aligned + counts if self.do_expand else ends

    @cached_property
    def recv_src_metadata(self) -> torch.Tensor:
        """[rows, 2 + topk]: the token's number among all ranks' (rank * most tokens + token), where
        its row goes home (rank * topk + its first choice here), and -1; rows without a token are
        -1 throughout."""
        if self._source is None or self._local_ids is None:
            raise tern.Unsupported("recv_src_metadata is for a dispatch without do_expand")
        topk = self._local_ids.shape[1]
        rows = torch.arange(len(self._source), device=self._source.device)
        there = rows < self.psum_num_recv_tokens_per_scaleup_rank[-1]
        rank, token = self._source[:, 0], self._source[:, 1]
        choice = (self._local_ids >= 0).int().argmax(1)
        meta = torch.full((len(rows), 2 + topk), -1, dtype=torch.int32, device=rows.device)
        meta[:, 0] = (rank * self.num_max_tokens_per_rank + token).masked_fill(~there, -1)
        meta[:, 1] = (rank * topk + choice).masked_fill(~there, -1)
        return meta
