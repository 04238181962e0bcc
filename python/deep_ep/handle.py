# SPDX-License-Identifier: Apache-2.0
"""Handles of the normal mode: tuples with DeepEP's tensors in DeepEP's places.

Tern itself needs the plan alone, so that the tensors are made when somebody looks at them. Each has
the plan as an attribute: a tuple that was taken apart and put together again is still a handle.
"""

from typing import Any, Callable, Iterator, List, Optional, Sequence, Tuple

import torch

from . import layout
from .routes import Plan


class Told:
    """What the ranks tell each other before they send: a row of numbers from each, and its
    parts."""

    def __init__(self, num_ranks: int, num_nodes: int, num_channels: int, num_experts: int) -> None:
        self.num_nodes, self.num_channels = num_nodes, num_channels
        lengths = [1, num_ranks, num_experts, num_nodes * num_channels]
        self.ends = [sum(lengths[: i + 1]) for i in range(len(lengths))]

    def row(
        self,
        num_tokens: int,
        per_rank: torch.Tensor,
        per_expert: torch.Tensor,
        by_node: Optional[torch.Tensor],
    ) -> List[torch.Tensor]:
        """This rank's parts: its tokens, those for each rank, the choices of each expert, the
        matrix of channels to the nodes."""
        first = torch.full((1,), num_tokens, dtype=torch.int32, device=per_expert.device)
        return [first, per_rank, per_expert] + ([] if by_node is None else [by_node.reshape(-1)])

    def tokens(self, rows: torch.Tensor) -> torch.Tensor:
        return rows[:, 0]

    def sent(self, rows: torch.Tensor) -> torch.Tensor:
        """[source, destination]: tokens."""
        return rows[:, self.ends[0] : self.ends[1]]

    def per_expert(self, rows: torch.Tensor) -> torch.Tensor:
        """[source, experts]: choices."""
        return rows[:, self.ends[1] : self.ends[2]]

    def by_node(self, rows: torch.Tensor) -> torch.Tensor:
        """[source, nodes, channels], inclusive."""
        return rows[:, self.ends[2] : self.ends[3]].reshape(-1, self.num_nodes, self.num_channels)


class Handle(tuple):
    """A tuple whose elements are made when they are looked at."""

    plan: Plan
    kept: Tuple[Any, ...]
    _makers: Sequence[Callable[[], torch.Tensor]]
    _made: List[Optional[torch.Tensor]]

    def __new__(
        cls, plan: Plan, makers: Sequence[Callable[[], torch.Tensor]], kept: Sequence[Any]
    ) -> "Handle":
        """kept: the tensors that the makers use, for who orders streams."""
        self = super().__new__(cls, (None,) * len(makers))
        self.kept = tuple(kept)
        self.plan, self._makers, self._made = plan, makers, [None] * len(makers)
        return self

    def _get(self, i: int) -> torch.Tensor:
        made = self._made[i]
        if made is None:
            made = self._makers[i]()
            made.deep_ep_plan = self.plan  # type: ignore[attr-defined]
            self._made[i] = made
        return made

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return tuple(self._get(i) for i in range(*key.indices(len(self))))
        return self._get(range(len(self))[key])

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (self._get(i) for i in range(len(self)))

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


def plan_of(handle: Any) -> Plan:
    """The plan of a handle, or of a tuple of its tensors."""
    plan = getattr(handle, "plan", None)
    for tensor in handle if plan is None else ():
        plan = plan or getattr(tensor, "deep_ep_plan", None)
    if plan is None:
        raise ValueError("the handle is none that dispatch gave, nor a tuple of its tensors")
    return plan


class Facts:
    """What the tensors of a handle are made of. They are on the device; nothing waits for them."""

    def __init__(
        self,
        told: Told,
        rank: int,
        rows: torch.Tensor,
        mask: torch.Tensor,
        node_mask: Optional[torch.Tensor],
        source: torch.Tensor,
        masks_received: Optional[torch.Tensor],
        node_ranks: int,
    ) -> None:
        self.told, self.rank, self.rows, self.mask = told, rank, rows, mask
        self.node_mask, self.source, self.masks_received = node_mask, source, masks_received
        self.node_ranks = node_ranks
        self.node = rank // node_ranks

    def makers(self) -> Tuple[Callable[[], torch.Tensor], ...]:
        if self.node_mask is None:
            return (
                self.rank_prefix_matrix,
                self.channel_prefix_matrix,
                self.recv_channel_prefix_matrix,
                self.recv_src_idx,
                self.is_token_in_rank,
                lambda: layout.queue_positions(self.mask, self.channel_prefix_matrix()),
            )
        return (
            self.is_token_in_rank,
            self.rdma_channel_prefix_matrix,
            self.channel_prefix_matrix,
            self.recv_rdma_channel_prefix_matrix,
            lambda: self.recv_rdma_channel_prefix_matrix()[:, -1].cumsum(0, dtype=torch.int32),
            lambda: self.recv_channel_prefix_matrix() + self.first_rows()[:, None],
            lambda: self.received().cumsum(0, dtype=torch.int32),
            self.recv_src_meta,
            lambda: layout.queue_positions(self.node_mask, self.rdma_channel_prefix_matrix()),
            lambda: torch.empty(
                (0, self.node_ranks), dtype=torch.int32, device=self.rows.device
            ),  # Tern forwards nothing through queues
        )

    def is_token_in_rank(self) -> torch.Tensor:
        return self.mask.view_as(self.mask)  # a tensor of its own, for the plan

    def received(self) -> torch.Tensor:
        """[source]: rows from it."""
        return self.told.sent(self.rows)[:, self.rank]

    def first_rows(self) -> torch.Tensor:
        received = self.received()
        return received.cumsum(0, dtype=torch.int32) - received

    def rank_prefix_matrix(self) -> torch.Tensor:
        return self.told.sent(self.rows).cumsum(0, dtype=torch.int32)

    def channel_prefix_matrix(self) -> torch.Tensor:
        return layout.channel_prefix(self.mask, self.told.num_channels)

    def recv_channel_prefix_matrix(self) -> torch.Tensor:
        """A row's channel is its token's on its source."""
        channels, ranks = self.told.num_channels, len(self.rows)
        source, token = self.source[:, 0].long(), self.source[:, 1]
        there = self._there()
        each = torch.div(
            self.told.tokens(self.rows) + (channels - 1), channels, rounding_mode="floor"
        ).clamp(min=1)
        channel = torch.div(token, each[source.masked_fill(~there, 0)], rounding_mode="floor")
        place = (source * channels + channel).masked_fill(~there, ranks * channels)
        counts = torch.zeros(ranks * channels + 1, dtype=torch.int32, device=place.device)
        counts.scatter_add_(0, place, torch.ones_like(place, dtype=torch.int32))
        counts = counts[:-1].view(ranks, channels)
        return counts.cumsum(1, dtype=torch.int32) - counts

    def rdma_channel_prefix_matrix(self) -> torch.Tensor:
        return self.told.by_node(self.rows)[self.rank].clone()

    def recv_rdma_channel_prefix_matrix(self) -> torch.Tensor:
        """From the rank of each node that has this rank's place there, for this node."""
        peers = slice(self.rank % self.node_ranks, None, self.node_ranks)
        return self.told.by_node(self.rows)[peers, self.node].clone()

    def _there(self) -> torch.Tensor:
        """[rows]: whether it is one that was received, not room that was left."""
        rows = torch.arange(self.source.shape[0], device=self.source.device)
        return rows < self.received().sum()

    def recv_src_idx(self) -> torch.Tensor:
        return self.source[:, 1].masked_fill(~self._there(), -1)

    def recv_src_meta(self) -> torch.Tensor:
        """Source node and the ranks of this node that have the token, as bits: 8 bytes a row."""
        assert self.masks_received is not None
        node = torch.div(self.source[:, 0], self.node_ranks, rounding_mode="floor")
        bits = self.masks_received[:, self.node].to(torch.int32)
        meta = torch.stack([node, bits], 1).masked_fill(~self._there()[:, None], -1)
        return meta.contiguous().view(torch.uint8)


def node_bits(mask: torch.Tensor, node_ranks: int) -> torch.Tensor:
    """uint8 [tokens, nodes]: the ranks of each node that get a token, as bits."""
    num_tokens, num_ranks = mask.shape
    weight = 2 ** torch.arange(node_ranks, device=mask.device)
    in_nodes = mask.view(num_tokens, num_ranks // node_ranks, node_ranks)
    return (in_nodes * weight).sum(2).to(torch.uint8)
