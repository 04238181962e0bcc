# SPDX-License-Identifier: Apache-2.0
"""EP objects: expert-parallel state for one shape."""

import weakref
from collections import deque
from typing import Any, Callable, Deque, Dict, Optional, Tuple

from . import _tern, low_latency, tensors
from .closing import Closing
from .communicator import Communicator
from .errors import BadState, Fault, InvalidArgument
from .low_latency import Batch
from .route import Route
from .tensors import Tensor

_TRANSFERS = ("auto", "bulk", "plain")
_MOST_PLANS = 256  # of an EP object; then it begins anew
_MOST_BAD_IDS = 64  # likewise; the oldest goes


class EP(Closing):
    """COLLECTIVE to make; every argument is the same on all ranks. One thread may use it at a time.

    num_experts: of all ranks, a multiple of their number; rank r owns the r-th share. max_topk: ids
    a token. max_tokens, hidden: the most of a route, and of its BF16 rows, whose number of channels
    is a multiple of 8; 0: no routes.
    max_row_bytes: in place of hidden, for rows of other types. max_routes: open at once, those that
    a backward pass still needs among them. ll_tokens, ll_hidden, ll_lanes: the most of a
    low-latency batch, and batches in flight; 0: no low-latency operations. ll_mask: a rank that
    misses the deadline of one is masked, and the others go on. staging_bytes: with a
    number, combine refuses inputs from outside window memory that are more; else those that do not
    fit are copied to window memory, out of heap_bytes, for the call. ll_rail: low latency crosses the
    network once a (token, domain). combine_push: whether combines in rank layout push their rows, which
    need be in no window then and are copied nowhere; None: where that is the faster way.
    dispatch_drain: dispatches in rank layout bring rows to tensors outside window memory while others
    arrive. The others are fields of struct tern_ep_config, which says what they mean.
    """

    def __init__(
        self,
        comm: Communicator,
        *,
        num_experts: int,
        max_topk: int,
        max_tokens: int = 0,
        hidden: int = 0,
        max_row_bytes: Optional[int] = None,
        max_routes: Optional[int] = None,
        ll_tokens: int = 0,
        ll_hidden: int = 0,
        ll_lanes: Optional[int] = None,
        ll_mask: bool = False,
        ll_rail: bool = False,
        timeout_ms: Optional[int] = None,
        num_sms: Optional[int] = None,
        transfer: str = "auto",
        staging_bytes: Optional[int] = None,
        domain_ranks: Optional[int] = None,
        transport: Optional[int] = None,
        net_queues: Optional[int] = None,
        net_ring_bytes: Optional[int] = None,
        combine_push: Optional[bool] = None,
        dispatch_drain: bool = False,
    ) -> None:
        self.comm = comm
        if max_row_bytes is None:
            max_row_bytes = 2 * tensors.number("hidden", hidden, 0, 2**20)
            if max_row_bytes % 16 != 0:
                tensors.refuse(
                    f"hidden is {hidden}: it must be a multiple of 8 (rows are multiples of 16 bytes)"
                )
        self._raw: Optional[_tern.EP] = _tern.EP(
            comm.raw,
            num_experts=num_experts,
            max_topk=max_topk,
            max_tokens=max_tokens,
            max_row_bytes=max_row_bytes,
            max_routes=max_routes,
            ll_tokens=ll_tokens,
            ll_hidden=ll_hidden,
            ll_lanes=ll_lanes,
            ll_mask=int(ll_mask),
            ll_rail=int(ll_rail),
            timeout_ms=timeout_ms,
            num_sms=num_sms,
            transfer=tensors.choice("transfer", transfer, _TRANSFERS),
            staging_bytes=staging_bytes,
            domain_ranks=domain_ranks,
            transport=transport,
            net_queues=net_queues,
            net_ring_bytes=net_ring_bytes,
            combine_push=tensors.choice("combine_push", combine_push, (None, True, False)),
            dispatch_drain=int(dispatch_drain),
        )
        self.num_experts = num_experts
        self.num_local_experts = num_experts // comm.size
        self.max_tokens, self.max_row_bytes = max_tokens, max_row_bytes
        self.ll_tokens = ll_tokens
        self.limits_staging = staging_bytes is not None
        self.combine_push = combine_push
        self._is_settled_by_streams = comm.machine != "cpu"
        self.plans: Dict[Any, Any] = {}  # of dispatches, by what their calls have in common
        # Ids out of range that were met while something else was waited for.
        self.bad_ids: Deque[InvalidArgument] = deque(maxlen=_MOST_BAD_IDS)
        # Routes that CUDA graphs have, by number: replays write where they are, whoever lets go of them.
        self.captured: Dict[int, "_tern.Route"] = {}
        # The batch that each lane dispatched last. The library sizes a combine by it.
        self.lanes: Dict[int, "weakref.ref[Batch]"] = {}

    @property
    def raw(self) -> "_tern.EP":
        if self._raw is None:
            raise BadState("the EP object is closed")
        return self._raw

    def keep_plan(self, key: Any, plan: Any) -> None:
        if len(self.plans) >= _MOST_PLANS:
            self.plans.clear()
        self.plans[key] = plan

    def settle(self) -> None:
        """On the cpu machine, whose operations torch's know nothing of: waits for what was issued,
        and raises its fault. On cuda the stream orders it."""
        if not self._is_settled_by_streams:
            self.wait()

    def wait(self) -> None:
        """synchronize, but an id out of range, which ends nothing, is kept for it: a call that was
        issued gives what it brought."""
        try:
            self.raw.synchronize()
        except InvalidArgument as error:
            self.bad_ids.append(error.with_traceback(None))

    def was_told(self, bad_id: Exception) -> None:
        """synchronize need not tell of it."""
        for kept in self.bad_ids:
            if str(kept) == str(bad_id):
                self.bad_ids.remove(kept)
                return

    def route(self, topk_idx: Tensor, *, layout: str = "rank", expert_alignment: int = 1) -> Route:
        """COLLECTIVE: the route of a batch. topk_idx: int64 or int32 [tokens, topk], -1 for no
        expert. layout: "rank", one row a (token, rank), or "expert", one a choice, grouped by local
        expert, each group at a multiple of expert_alignment rows."""
        return Route(self, topk_idx, layout, expert_alignment)

    def ll_dispatch(
        self,
        x: Tensor,
        topk_idx: Tensor,
        topk_weights: Optional[Tensor] = None,
        *,
        max_tokens: Optional[int] = None,
        cast: Optional[str] = None,
        layout: str = "expert",
        weights: str = "combine",
        lane: int = 0,
        hook: bool = False,
        sum_counts: Optional[Tensor] = None,
        wait_ns: Optional[Tensor] = None,
        num_sms: Optional[int] = None,
    ) -> Batch:
        """COLLECTIVE: low-latency dispatch of the BF16 rows x. See Batch for what comes, tern_ll.h
        for the arguments. hook: sends only; Batch.hook() receives, and no output is there
        before."""
        return low_latency.dispatch(
            self,
            x,
            topk_idx,
            topk_weights,
            max_tokens,
            cast,
            layout,
            weights,
            lane,
            hook,
            sum_counts,
            wait_ns,
            num_sms,
        )

    def ll_combine(
        self,
        batch: Batch,
        y: Tensor,
        topk_weights: Optional[Tensor] = None,
        *,
        compression: Optional[str] = None,
        out: Optional[Tensor] = None,
        hook: bool = False,
        wait_ns: Optional[Tensor] = None,
        num_sms: Optional[int] = None,
    ) -> Tuple[Any, Optional[Callable[[], None]]]:
        """COLLECTIVE: brings y, which has the shape of batch.x, in BF16, home: (sums, hook). With
        hook=True it sends only, and hook() receives; else the second is None. topk_weights: of
        weights="combine" and "ahead"."""
        return low_latency.combine(
            self,
            batch,
            y,
            topk_weights,
            compression=compression,
            out=out,
            hook=hook,
            wait_ns=wait_ns,
            num_sms=num_sms,
        )

    def ll_mask_set(self, rank: int, masked: bool) -> None:
        """Of an object opened with ll_mask: leaves `rank` (-1: all) out of low-latency operations,
        in this rank's view, or takes it in again. tern_ll.h says when all ranks must call it."""
        self.raw.ll_mask_set(self.comm.stream(), rank, int(masked))
        self.settle()

    def ll_mask(self, out: Optional[Tensor] = None) -> Any:
        """int32 [ranks], 1 for those that are masked in this rank's view."""
        import torch

        if out is None:
            out = torch.empty(self.comm.size, dtype=torch.int32, device=self.comm.device)
        mask = tensors.target(self.comm, "out", out, ["int32"], (self.comm.size,))
        self.raw.ll_mask_get(self.comm.stream(), mask.data_ptr())
        self.settle()
        tensors.wrote(mask)
        return mask

    def synchronize(self) -> None:
        """Waits for all that was issued on this object; raises its fault, if any, every time, and
        an id out of range (it counts as -1) once, unless Route.counts has."""
        self.wait()
        if self.bad_ids:
            raise self.bad_ids.popleft()

    def reset(self) -> None:
        """COLLECTIVE: after a fault, makes the object as new. Its routes and batches are of no use
        any more."""
        self.lanes.clear()
        self.raw.reset()
        self.captured.clear()
        self.bad_ids.clear()

    @property
    def fault(self) -> Optional[Fault]:
        """The first fault since the object was opened or reset."""
        record = self.raw.fault()
        return None if record is None else Fault(**{**record, "late": tuple(record["late"])})

    def close(self) -> None:
        """Local: waits for what this rank issued and closes routes left open. Not while a peer's
        operation waits for this rank: a barrier before it sees to that. Nor while a graph of it is
        replayed, for which it does not wait: synchronize the streams first."""
        if self._raw is not None:
            self._raw.close()
            self._raw = None
            self.captured.clear()
