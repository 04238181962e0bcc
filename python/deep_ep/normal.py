# SPDX-License-Identifier: Apache-2.0
"""Dispatch and combine of the normal mode: rows by source rank, then token, one a token and
rank."""

from typing import Any, List, Optional, Tuple

import torch

import tern

from . import config, layout
from .config import Config
from .exchange import Exchange
from .handle import Facts, Handle, Told, node_bits, plan_of
from .routes import Plan, Routes
from .streams import Streams


class Normal:
    def __init__(self, comm: tern.Communicator, streams: Streams, staging_bytes: int) -> None:
        self.comm, self.streams = comm, streams
        self.routes = Routes(comm, staging_bytes)
        self.exchange = Exchange(comm, streams)

    def dispatch(
        self,
        parts: List[torch.Tensor],
        num_tokens_per_rank: torch.Tensor,
        is_token_in_rank: torch.Tensor,
        num_tokens_per_expert: torch.Tensor,
        topk_idx: Optional[torch.Tensor],
        topk_weights: Optional[torch.Tensor],
        expert_alignment: int,
        num_worst_tokens: int,
        settings: Config,
    ) -> Tuple[tern.Rows, List[int], Handle]:
        """COLLECTIVE, on the current stream. parts: the rows, and their scales if they have
        some."""
        num_tokens, num_ranks = is_token_in_rank.shape
        assert num_ranks == self.comm.size, f"is_token_in_rank is of {num_ranks} ranks"
        assert len(parts[0]) == num_tokens, f"x has {len(parts[0])} tokens, not {num_tokens}"
        node_ranks = config.NODE_RANKS
        nodes = num_ranks // node_ranks if layout.has_nodes(num_ranks, node_ranks) else 0
        num_experts = int(num_tokens_per_expert.shape[0])
        told = Told(num_ranks, nodes, settings.num_channels, num_experts)
        node_mask = layout.by_node(is_token_in_rank, node_ranks) if nodes else None
        by_node = None if node_mask is None else layout.channel_prefix(node_mask, told.num_channels)
        rows = self.exchange.run(
            told.row(num_tokens, num_tokens_per_rank, num_tokens_per_expert, by_node)
        )
        experts: List[int] = []
        if num_worst_tokens:
            mine = most_rows = most_tokens = num_worst_tokens
        else:
            self.exchange.wait()
            on_host = rows.cpu()
            received = told.sent(on_host).sum(0)
            mine, most_rows = int(received[self.comm.rank]), int(received.max())
            most_tokens = int(told.tokens(on_host).max())
            experts = self._experts(told.per_expert(on_host), expert_alignment)
        ids = (
            _ranks_as_ids(is_token_in_rank, num_experts) if topk_idx is None else topk_idx.clone()
        )
        plan = Plan(num_experts, ids, mine, most_rows, most_tokens, bool(num_worst_tokens))
        extra = [] if node_mask is None else [node_bits(is_token_in_rank, node_ranks)]
        got = self._send(plan, parts + extra, topk_weights, topk_idx is not None, True, settings)
        masks = got.x[-1] if extra else None
        assert got.source is not None
        facts = Facts(
            told,
            self.comm.rank,
            rows,
            is_token_in_rank,
            node_mask,
            got.source,
            masks,
            node_ranks,
        )
        kept = [ids, rows, got.source, masks, node_mask]
        return got._replace(x=got.x[: len(parts)]), experts, Handle(plan, facts.makers(), kept)

    def again(self, parts: List[torch.Tensor], handle: Any, settings: Config) -> tern.Rows:
        """COLLECTIVE: other rows along a handle."""
        return self._send(plan_of(handle), parts, None, False, False, settings)

    def _send(
        self,
        plan: Plan,
        parts: List[torch.Tensor],
        topk_weights: Optional[torch.Tensor],
        wants_ids: bool,
        wants_source: bool,
        settings: Config,
    ) -> tern.Rows:
        """The rows; x is a tuple, as the parts are."""
        # The combine that follows has BF16 rows.
        row_bytes = sum(part.shape[1] * part.element_size() for part in parts)
        self.routes.reserve(plan, max(row_bytes, 2 * parts[0].shape[1]))
        return self.routes.route(plan).plain_dispatch(
            tuple(parts),
            topk_weights,
            cast=None,
            num_rows=plan.num_rows,
            topk_idx=wants_ids,
            source=wants_source,
            zero_padding=False,
            num_sms=settings.num_sms or None,
            empty=self.streams.empty,
        )

    def _experts(self, per_expert: torch.Tensor, alignment: int) -> List[int]:
        share = per_expert.shape[1] // self.comm.size
        mine = slice(self.comm.rank * share, (self.comm.rank + 1) * share)
        counts = per_expert[:, mine].sum(0).tolist()
        return [-(-number // alignment) * alignment for number in counts]

    def combine(
        self,
        x: torch.Tensor,
        handle: Any,
        topk_weights: Optional[torch.Tensor],
        biases: Tuple[torch.Tensor, ...],
        settings: Config,
    ) -> tern.Sums:
        """COLLECTIVE, on the current stream."""
        plan = plan_of(handle)
        assert len(x) == plan.num_rows, f"x has {len(x)} rows: the handle has {plan.num_rows}"
        columns, topk = None, int(plan.ids.shape[1])
        if topk_weights is not None and topk_weights.shape[1] != topk:
            # The handle was made without ids, and any number of columns goes.
            columns = int(topk_weights.shape[1])
            assert columns <= topk, f"{columns} weights a row: the handle has {topk} ids a token"
            topk_weights = torch.nn.functional.pad(topk_weights, (0, topk - columns))
        self.routes.reserve(plan, 2 * int(x.shape[1]))
        sums = self.routes.route(plan).plain_combine(
            x, topk_weights, biases, None, settings.num_sms or None
        )
        if columns is not None and sums.weights is not None:
            sums = sums._replace(weights=sums.weights[:, :columns].contiguous())
        return sums

    def close(self) -> None:
        """COLLECTIVE."""
        bad_ids: List[tern.InvalidArgument] = []
        try:
            if self.exchange.close():  # else there was no dispatch
                bad_ids = self.routes.wait()
                self.comm.barrier()
        finally:
            self.routes.close()
        if bad_ids:
            raise bad_ids[0]


def _ranks_as_ids(is_token_in_rank: torch.Tensor, num_experts: int) -> torch.Tensor:
    """Ids that say no more than who gets a token: the first expert of each of its ranks."""
    num_ranks = is_token_in_rank.shape[1]
    if num_ranks > 64:
        raise tern.Unsupported(f"a dispatch without topk_idx takes up to 64 ranks, not {num_ranks}")
    first = torch.arange(num_ranks, device=is_token_in_rank.device) * (num_experts // num_ranks)
    return torch.where(is_token_in_rank, first, torch.full_like(first, -1)).contiguous()
