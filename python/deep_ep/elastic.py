# SPDX-License-Identifier: Apache-2.0
"""deep_ep.ElasticBuffer: dispatch and combine without a layout call, also expanded by expert.

Rows by rank are in the order of the normal mode of Buffer, expanded ones by expert, source rank,
token and choice: always, so that `deterministic` has nothing to add. Behind expanded rows there is
a route by rank, too: along it ranks tell whose the rows are, and combine goes, if it may reduce
more than once.
"""

import sys
from typing import Any, List, Optional, Sequence, Tuple, Union

import torch

import tern

from . import domains, layout
from .config import NODE_RANKS
from .elastic_handle import EPHandle
from .event import EventHandle, EventOverlap
from .exchange import Exchange
from .routes import Plan, Routes
from .runtime import Runtime
from .streams import Streams

Rows = Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]

_GRANULE = 2**21


def _up(value: int, step: int) -> int:
    return -(-value // step) * step


class ElasticBuffer:
    """COLLECTIVE to make. Either num_bytes or the shape of the largest batch; half of the bytes is
    for outputs, half for what combine reads. num_gpu_timeout_secs is the deadline of every wait.
    allow_multiple_reduction: expanded rows of a token are added and rounded on their rank, before
    they go home. num_topk, use_fp8_dispatch, deterministic, allow_hybrid_mode, sl_idx,
    num_allocated_qps and num_cpu_timeout_secs are taken and not needed."""

    def __init__(
        self,
        group: Any,
        num_bytes: Optional[int] = None,
        num_cpu_bytes: int = 0,
        num_max_tokens_per_rank: int = 0,
        hidden: int = 0,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        deterministic: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
        prefer_overlap_with_compute: bool = True,
        sl_idx: int = 3,
        num_allocated_qps: int = 0,
        num_cpu_timeout_secs: int = 300,
        num_gpu_timeout_secs: int = 100,
        explicitly_destroy: bool = False,
    ) -> None:
        self.runtime: Optional[Runtime] = None
        if num_cpu_bytes:
            raise tern.Unsupported(f"{num_cpu_bytes} bytes of CPU memory: there is no Engram here")
        if num_bytes is None:
            assert num_max_tokens_per_rank and hidden, "give num_bytes, or the shape of a batch"
            num_bytes = self.get_buffer_size_hint(group, num_max_tokens_per_rank, hidden, num_topk)
        half = max(2**24, _up(num_bytes // 2, _GRANULE))
        self.runtime = Runtime.from_torch(
            group, heap_bytes=half, timeout_ms=1000 * num_gpu_timeout_secs
        )
        self.group, self.num_bytes = group, num_bytes
        self.rank_idx: int = self.runtime.rank
        self.num_ranks: int = self.runtime.size
        self.num_max_tokens_per_rank = num_max_tokens_per_rank
        self.num_allocated_qps = num_allocated_qps
        self.num_scaleout_ranks, self.num_scaleup_ranks = self.get_logical_domain_size()
        self.scaleout_rank_idx, self.scaleup_rank_idx = 0, self.rank_idx
        self.num_rdma_ranks, self.num_nvlink_ranks = self.get_physical_domain_size()
        self.explicitly_destroy = explicitly_destroy
        self.prefer_overlap_with_compute = prefer_overlap_with_compute
        self.allow_multiple_reduction = allow_multiple_reduction
        self._streams = Streams(self.runtime)
        self.runtime.comm_stream = self._streams.own
        self._routes = Routes(self.runtime, half)
        self._exchange = Exchange(self.runtime, self._streams)

    def destroy(self) -> None:
        """COLLECTIVE. With explicitly_destroy=True it is waited for, else it may come early."""
        self._destroy()

    def _destroy(self) -> None:
        comm, self.runtime = self.runtime, None
        if comm is not None:
            bad_ids: List[tern.InvalidArgument] = []
            try:
                try:
                    self._streams.finish()
                finally:
                    had_dispatches = self._exchange.close()
                if had_dispatches:
                    bad_ids = self._routes.wait()
                    comm.barrier()
            finally:
                self._routes.close()
                comm.close()
            if bad_ids:
                raise bad_ids[0]

    def __del__(self) -> None:
        if getattr(self, "runtime", None) is None or sys.is_finalizing():
            return
        if self.explicitly_destroy:
            print(f"[rank {self.rank_idx}] an ElasticBuffer without destroy()", file=sys.stderr)
            return
        try:
            self._destroy()
        except tern.Error as error:
            print(f"[rank {self.rank_idx}] an ElasticBuffer ends badly: {error}", file=sys.stderr)

    def _comm(self) -> tern.Communicator:
        if self.runtime is None:
            raise tern.BadState("the ElasticBuffer is destroyed")
        return self.runtime

    # ---- Sizes, domains, streams

    @staticmethod
    def get_buffer_size_hint(
        group: Any,
        num_max_tokens_per_rank: int,
        hidden: int,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
    ) -> int:
        """Bytes for the largest batch by rank, in BF16, there and back, whatever the other
        arguments are."""
        rows = torch.distributed.get_world_size(group) * num_max_tokens_per_rank
        return 2 * _up(rows * (2 * hidden + 12 * (num_topk or 32) + 8) + 2**13, _GRANULE)

    def get_theoretical_num_sms(
        self,
        num_experts: int,
        num_topk: int,
        num_scaleout_topk: int = 0,
        rdma_gbs: float = 0,
        nvlink_gbs: float = 0,
        sm_read_gbs: float = 200,
        sm_write_gbs: float = 50,
    ) -> int:
        """Processors for an operation: Tern's own number beside other work, more without, and no
        more than the device has. The figures that DeepEP's model takes make no difference."""
        wanted = 24 if self.prefer_overlap_with_compute else 64
        return max(2, min(wanted, self._comm().num_sms) // 2 * 2)

    def get_theoretical_num_qps(self, num_sms: int) -> int:
        """Queue pairs are Tern's business; one a processor, up to its default."""
        return max(1, min(num_sms, 8))

    def get_physical_domain_size(self) -> Tuple[int, int]:
        return domains.get_physical_domain_size(self.group)

    def get_logical_domain_size(self) -> Tuple[int, int]:
        return domains.get_logical_domain_size(self.group)

    @staticmethod
    def capture() -> EventHandle:
        """An event on the current stream."""
        return EventHandle()

    def get_comm_stream(self) -> Any:
        return self._streams.own

    def barrier(
        self, use_comm_stream: bool = True, with_cpu_sync: bool = False, sequential: bool = True
    ) -> None:
        """COLLECTIVE: what comes behind it on the stream begins when all ranks have come. It is in
        order with all operations, whatever `sequential` says."""
        word = torch.zeros(1, dtype=torch.int32, device=self._comm().device)
        if use_comm_stream:
            with self._streams.operation():
                self._exchange.run([word])
        else:
            self._streams.begin()
            self._exchange.run([word])
        if with_cpu_sync:
            self._exchange.wait()

    # ---- Operations

    def dispatch(
        self,
        x: Rows,
        topk_idx: Optional[torch.Tensor] = None,
        topk_weights: Optional[torch.Tensor] = None,
        cumulative_local_expert_recv_stats: Optional[torch.Tensor] = None,
        num_experts: Optional[int] = None,
        num_max_tokens_per_rank: Optional[int] = None,
        expert_alignment: Optional[int] = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: Optional[EventHandle] = None,
        previous_event_before_epilogue: Optional[EventHandle] = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
        handle: Optional[EPHandle] = None,
        do_handle_copy: bool = True,
        do_cpu_sync: Optional[bool] = None,
        do_expand: bool = False,
        do_zero_padding: bool = False,
        use_tma_aligned_col_major_sf: bool = False,
    ) -> Tuple[Rows, Optional[torch.Tensor], Optional[torch.Tensor], EPHandle, EventOverlap]:
        """COLLECTIVE. (rows, ids or None if expanded, weights, handle, event). do_cpu_sync: default
        True, and False along a handle: rows as many as come; else as many as can come. num_qps:
        taken and not needed."""
        self._comm()
        parts = list(x) if isinstance(x, (tuple, list)) else [x]
        if handle is not None:
            assert topk_idx is None and not do_cpu_sync, "a handle, and ids or do_cpu_sync, too"
            assert do_expand == handle.do_expand, f"the handle has do_expand={handle.do_expand}"
            for name, value in (
                ("num_experts", num_experts),
                ("expert_alignment", expert_alignment),
                ("num_max_tokens_per_rank", num_max_tokens_per_rank),
            ):
                have = getattr(handle, name)
                assert value in (None, have), f"{name} is {value}: the handle has {have}"
        else:
            assert topk_idx is not None and num_experts is not None, (
                "without a handle dispatch needs topk_idx and num_experts"
            )
            layout.check_statistics(
                cumulative_local_expert_recv_stats,
                num_experts // self.num_ranks,
                self._comm().device,
            )
        with self._streams.operation(previous_event, async_with_compute_stream) as operation:
            if previous_event_before_epilogue is not None:
                previous_event_before_epilogue.current_stream_wait()
            operation.reads(x, topk_idx, topk_weights, cumulative_local_expert_recv_stats)
            first = handle is None
            if handle is None:
                assert topk_idx is not None and num_experts is not None
                most = num_max_tokens_per_rank or self.num_max_tokens_per_rank
                assert len(topk_idx) <= most, (
                    f"{len(topk_idx)} tokens: num_max_tokens_per_rank is {most}"
                )
                ids = topk_idx.clone() if do_handle_copy else topk_idx
                plan = self._plan(ids, num_experts, most, do_expand, expert_alignment or 1)
                told = self._tell(ids, num_experts)
                if do_expand and do_cpu_sync is not False:
                    plan.most_rows = self._most_expanded(told, plan.alignment)
            else:
                plan = handle.plan
                operation.reads(handle.topk_idx)  # the caller's, with do_handle_copy=False
            self._reserve(plan, parts)
            route = self._routes.route(plan)
            counts: List[int] = []
            if handle is None:
                num_recv = self.num_ranks * most
                if do_cpu_sync is not False:
                    known = route.learn()
                    plan.num_rows, num_recv = known.num_rows, known.num_tokens
                    counts = list(known.expert_counts)
                if do_expand:
                    by_rank = self._plan(ids, num_experts, most, False, 1)
                    by_rank.num_rows = num_recv
                    behind = self._behind(by_rank)
                    route = self._routes.route(plan)  # another, if larger buffers were opened
            got = route.plain_dispatch(
                tuple(parts),
                topk_weights,
                cast=None,
                num_rows=plan.num_rows,
                topk_idx=not do_expand,
                source=first and not do_expand,
                zero_padding=do_expand and do_zero_padding,
                num_sms=num_sms or None,
                empty=self._streams.empty,
            )
            if handle is None:
                handle = EPHandle(
                    plan,
                    self.rank_idx,
                    do_expand,
                    most,
                    num_sms,
                    ids,
                    num_recv,
                    counts,
                    told,
                    behind if do_expand else got,
                    by_rank if do_expand else None,
                )
                received = handle.num_unaligned_recv_tokens_per_expert
                operation.makes(told, ids, handle.source, handle.local_ids, received)
                if do_expand:
                    operation.makes(handle.expanded_rows)
                if cumulative_local_expert_recv_stats is not None:
                    cumulative_local_expert_recv_stats += received
            rows = list(got.x)
            if use_tma_aligned_col_major_sf and len(rows) > 1:
                rows[1] = _column_major(rows[1])
            operation.makes(rows, got.topk_idx, got.topk_weights)
        made = tuple(rows) if isinstance(x, (tuple, list)) else rows[0]
        return made, got.topk_idx, got.topk_weights, handle, operation.overlap()

    def _plan(
        self, ids: torch.Tensor, num_experts: int, most: int, by_expert: bool, alignment: int
    ) -> Plan:
        """With room for all that can come."""
        rows = self.num_ranks * most
        if by_expert:
            share = num_experts // self.num_ranks
            rows = rows * min(int(ids.shape[1]), share) + (alignment - 1) * share
            rows = _up(rows, alignment)
        return Plan(
            num_experts,
            ids,
            num_rows=rows,
            most_rows=rows,
            most_tokens=most,
            layout="expert" if by_expert else "rank",
            alignment=alignment,
        )

    def _reserve(self, plan: Plan, parts: Sequence[torch.Tensor]) -> None:
        row_bytes = sum(part.shape[1] * part.element_size() for part in parts)
        self._routes.reserve(plan, max(row_bytes, 2 * int(parts[0].shape[1])))

    def _behind(self, by_rank: Plan) -> tern.Rows:
        """COLLECTIVE. Of the tokens behind expanded rows: their sources and local ids."""
        ids = by_rank.ids
        nothing = torch.zeros((len(ids), 16), dtype=torch.uint8, device=ids.device)
        self._reserve(by_rank, [nothing])
        return self._routes.route(by_rank).plain_dispatch(
            nothing,
            None,
            cast=None,
            num_rows=by_rank.num_rows,
            topk_idx=True,
            source=True,
            zero_padding=False,
            num_sms=None,
            empty=self._streams.empty,
        )

    def _tell(self, ids: torch.Tensor, num_experts: int) -> torch.Tensor:
        """[source, ranks + experts]: tokens for each rank, choices of each expert."""
        per_rank, _, per_expert, _ = layout.get_dispatch_layout(
            ids, num_experts, self.num_ranks, NODE_RANKS
        )
        return self._exchange.run([per_rank, per_expert])

    def _most_expanded(self, told: torch.Tensor, alignment: int) -> int:
        """The most expanded rows that a rank receives, padding included. Waits for what was told."""
        self._exchange.wait()
        counts = told.cpu()[:, self.num_ranks :].sum(0).view(self.num_ranks, -1)
        return max(sum(_up(number, alignment) for number in share) for share in counts.tolist())

    def combine(
        self,
        x: torch.Tensor,
        handle: EPHandle,
        topk_weights: Optional[torch.Tensor] = None,
        bias: Union[torch.Tensor, Sequence[torch.Tensor], None] = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: Optional[EventHandle] = None,
        previous_event_before_epilogue: Optional[EventHandle] = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> Tuple[torch.Tensor, Optional[torch.Tensor], EventOverlap]:
        """COLLECTIVE. (sums, sums of weights, event). In FP32, rounded once: biases, then rows by
        rank. Expanded ones likewise by choice, or, with allow_multiple_reduction, on their rank
        first. num_sms: default that of the handle."""
        self._comm()
        sms = num_sms or handle.num_sms or None
        biases = (bias,) if isinstance(bias, torch.Tensor) else tuple(bias or ())
        with (
            self._streams.operation(previous_event, async_with_compute_stream) as operation,
            torch.no_grad(),
        ):
            if previous_event_before_epilogue is not None:
                previous_event_before_epilogue.current_stream_wait()
            operation.reads(x, topk_weights, biases, handle.topk_idx)
            plan = handle.plan
            handle.check(x, topk_weights)
            if handle.by_rank is not None and self.allow_multiple_reduction:
                plan = handle.by_rank
                operation.reads(handle.expanded_rows)
                x, topk_weights = handle.fold(x, topk_weights)
                operation.makes(x, topk_weights)
            self._reserve(plan, [x])
            route = self._routes.route(plan)
            given = tuple(bias for bias in biases if bias is not None)
            try:
                sums = route.plain_combine(x, topk_weights, given, None, sms)
            except tern.NoSpace:  # more rows than the dispatch gave, and than staging takes
                if not self._streams.need_window():
                    raise
                empty = self._streams.empty
                x = empty(x.shape, x.dtype).copy_(x)
                if topk_weights is not None:
                    topk_weights = empty(topk_weights.shape, topk_weights.dtype).copy_(topk_weights)
                sums = route.plain_combine(x, topk_weights, given, None, sms)
                operation.makes(x, topk_weights)
            operation.makes(sums.x, sums.weights)
        return sums.x, sums.weights, operation.overlap()


def _column_major(scales: torch.Tensor) -> torch.Tensor:
    """The same scales, those of a word of the rows together, each run at a multiple of 16 bytes."""
    rows, words = scales.shape
    wide = torch.empty(
        (words, _up(rows, 16 // scales.element_size())), dtype=scales.dtype, device=scales.device
    )
    made = wide[:, :rows].t()
    return made.copy_(scales)
