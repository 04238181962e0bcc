# SPDX-License-Identifier: Apache-2.0
"""deep_ep.Buffer: arguments and results as DeepEP has them; the work is done by normal.py and
low_latency.py."""

import contextlib
import sys
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import torch

import tern

from . import config as configs
from . import layout, low_latency
from .config import Config
from .event import EventHandle, EventOverlap
from .low_latency import LowLatency
from .normal import Normal
from .runtime import Runtime
from .streams import Streams

Rows = Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]

_LEAST_BYTES = 2**24


class Buffer:
    """COLLECTIVE to make, by all ranks of `group` (of torch.distributed, any backend) or of `comm`
    (of mpi4py).

    num_nvl_bytes: memory to begin with, for outputs and for what combine reads; more is taken if
    it is needed. num_rdma_bytes, low_latency_mode: if the bytes are what
    get_low_latency_rdma_size_hint said on every rank, the low-latency buffers are made at once,
    else with the first call. num_qps_per_rank, allow_nvlink_for_low_latency_mode, allow_mnnvl:
    taken and not needed. enable_shrink: ranks that miss the deadline of a low-latency operation are
    masked.
    """

    num_sms: int = 20

    def __init__(
        self,
        group: Any,
        num_nvl_bytes: int = 0,
        num_rdma_bytes: int = 0,
        low_latency_mode: bool = False,
        num_qps_per_rank: int = 24,
        allow_nvlink_for_low_latency_mode: bool = True,
        allow_mnnvl: bool = False,
        explicitly_destroy: bool = False,
        enable_shrink: bool = False,
        comm: Any = None,
    ) -> None:
        self.runtime: Optional[Runtime] = None
        if group is None and comm is None:
            raise ValueError("a Buffer needs a group, or a comm of mpi4py")
        heap = max(_LEAST_BYTES, -(-num_nvl_bytes // 2**22) * 2**21)  # half of it, in whole MiB
        if group is not None:
            self.runtime = Runtime.from_torch(group, heap_bytes=heap)
        else:
            self.runtime = Runtime.from_mpi(comm, heap_bytes=heap)
        self.group = group
        self.rank: int = self.runtime.rank
        self.group_size: int = self.runtime.size
        self.num_nvl_bytes, self.num_rdma_bytes = num_nvl_bytes, num_rdma_bytes
        self.low_latency_mode = low_latency_mode
        self.explicitly_destroy, self.enable_shrink = explicitly_destroy, enable_shrink
        self._streams = Streams(self.runtime)
        self.runtime.comm_stream = self._streams.own
        self._normal = Normal(self.runtime, self._streams, heap)
        self._low_latency = LowLatency(self.runtime, self._streams, enable_shrink)
        self._local: Dict[bool, torch.Tensor] = {}
        if low_latency_mode:
            self._low_latency.open_for(num_rdma_bytes)

    # ---- Lifetime

    def destroy(self) -> None:
        """COLLECTIVE. With explicitly_destroy=True a Buffer waits for it, else it may come early.
        After a fault it raises that once more, and the Buffer is gone all the same."""
        self._destroy()

    def _destroy(self) -> None:
        comm, self.runtime = self.runtime, None
        if comm is not None:
            self._local.clear()
            with contextlib.ExitStack() as ends:  # from the last on, whatever fails
                ends.callback(comm.close)
                ends.callback(self._normal.close)
                ends.callback(self._low_latency.close)
                self._streams.finish()

    def __del__(self) -> None:
        if getattr(self, "runtime", None) is None or sys.is_finalizing():
            return
        if self.explicitly_destroy:
            print(f"[rank {self.rank}] a deep_ep.Buffer ends without destroy()", file=sys.stderr)
            return
        try:
            self._destroy()
        except tern.Error as error:
            print(f"[rank {self.rank}] a deep_ep.Buffer ends badly: {error}", file=sys.stderr)

    def _comm(self) -> tern.Communicator:
        if self.runtime is None:
            raise tern.BadState("the Buffer is destroyed")
        return self.runtime

    # ---- Settings, sizes, streams

    @staticmethod
    def is_sm90_compiled() -> bool:
        """Whether operations here use what needs sm_90: bulk copies, which the CPU models."""
        return not torch.cuda.is_available() or torch.cuda.get_device_capability() >= (9, 0)

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        assert new_num_sms % 2 == 0, f"{new_num_sms} processors: the number must be even"
        Buffer.num_sms = new_num_sms

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        return configs.recommended(Buffer.num_sms, num_ranks, combine=False)

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        return configs.recommended(Buffer.num_sms, num_ranks, combine=True)

    @staticmethod
    def get_low_latency_rdma_size_hint(
        num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int
    ) -> int:
        return low_latency.size_hint(num_max_dispatch_tokens_per_rank, hidden, num_experts)

    @staticmethod
    def capture() -> EventOverlap:
        """An event on the current stream."""
        return EventOverlap(EventHandle())

    def get_comm_stream(self) -> Any:
        """The stream of the Buffer's operations; None on the CPU, which has none."""
        return self._streams.own

    def get_local_buffer_tensor(
        self,
        dtype: torch.dtype,
        size: Optional[torch.Size] = None,
        offset: int = 0,
        use_rdma_buffer: bool = False,
    ) -> torch.Tensor:
        """num_nvl_bytes (or num_rdma_bytes) of memory from byte `offset` on, for the caller alone:
        it is made when it is first asked for, and no operation uses it."""
        if use_rdma_buffer not in self._local:
            num = self.num_rdma_bytes if use_rdma_buffer else self.num_nvl_bytes
            self._local[use_rdma_buffer] = torch.empty(
                num, dtype=torch.int8, device=self._comm().device
            )
        raw = self._local[use_rdma_buffer][offset:]
        item = torch.empty(0, dtype=dtype).element_size()
        whole = raw[: raw.numel() // item * item].view(dtype)
        if size is None:
            return whole
        elements = torch.Size(size).numel()
        assert elements <= whole.numel(), f"{elements} elements: there is room for {whole.numel()}"
        return whole[:elements].view(size)

    # ---- Normal mode

    def get_dispatch_layout(
        self,
        topk_idx: torch.Tensor,
        num_experts: int,
        previous_event: Optional[EventOverlap] = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> Tuple[torch.Tensor, Optional[torch.Tensor], torch.Tensor, torch.Tensor, EventOverlap]:
        """(tokens for each rank, for each node of 8 if there are several, choices of each expert,
        who gets which token, event)."""
        with self._streams.operation(
            previous_event, async_finish, allocate_on_comm_stream
        ) as operation:
            made = layout.get_dispatch_layout(
                topk_idx, num_experts, self.group_size, configs.NODE_RANKS
            )
            operation.reads(topk_idx)
            operation.makes(made)
        return made + (operation.overlap(),)

    def dispatch(
        self,
        x: Rows,
        handle: Optional[Tuple[Any, ...]] = None,
        num_tokens_per_rank: Optional[torch.Tensor] = None,
        num_tokens_per_rdma_rank: Optional[torch.Tensor] = None,
        is_token_in_rank: Optional[torch.Tensor] = None,
        num_tokens_per_expert: Optional[torch.Tensor] = None,
        topk_idx: Optional[torch.Tensor] = None,
        topk_weights: Optional[torch.Tensor] = None,
        expert_alignment: int = 1,
        num_worst_tokens: int = 0,
        config: Optional[Config] = None,
        previous_event: Optional[EventOverlap] = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> Tuple[
        Rows,
        Optional[torch.Tensor],
        Optional[torch.Tensor],
        Optional[List[int]],
        Optional[Tuple[Any, ...]],
        EventOverlap,
    ]:
        """COLLECTIVE. (rows, their ids, their weights, rows of each local expert, handle, event).
        With a handle: along it, and the four in between are None. num_worst_tokens: rows to make
        room for, without a word to the host; the same on all ranks."""
        self._comm()
        settings = config or self.get_dispatch_config(self.group_size)
        parts = _parts(x)
        with self._streams.operation(
            previous_event, async_finish, allocate_on_comm_stream
        ) as operation:
            operation.reads(x, topk_idx, topk_weights, is_token_in_rank)
            operation.reads(num_tokens_per_rank, num_tokens_per_expert)
            if handle is not None:
                assert topk_idx is None and topk_weights is None, "ids or weights beside a handle"
                got = self._normal.again(parts, handle, settings)
                operation.makes(got.x)
            else:
                assert (
                    num_tokens_per_rank is not None
                    and is_token_in_rank is not None
                    and num_tokens_per_expert is not None
                ), "without a handle dispatch needs what get_dispatch_layout gives"
                assert (topk_idx is None) == (topk_weights is None), "ids and weights come together"
                assert topk_idx is not None or not num_worst_tokens, (
                    "num_worst_tokens needs topk_idx"
                )
                got, experts, made = self._normal.dispatch(
                    parts,
                    num_tokens_per_rank,
                    is_token_in_rank,
                    num_tokens_per_expert,
                    topk_idx,
                    topk_weights,
                    expert_alignment,
                    num_worst_tokens,
                    settings,
                )
                operation.makes(got.x, got.topk_idx, got.topk_weights, made.kept)
        event = operation.overlap()
        rows = tuple(got.x) if isinstance(x, (tuple, list)) else got.x[0]
        if handle is not None:
            return rows, None, None, None, None, event
        return rows, got.topk_idx, got.topk_weights, experts, made, event

    def combine(
        self,
        x: torch.Tensor,
        handle: Tuple[Any, ...],
        topk_weights: Optional[torch.Tensor] = None,
        bias: Union[torch.Tensor, Sequence[torch.Tensor], None] = None,
        config: Optional[Config] = None,
        previous_event: Optional[EventOverlap] = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> Tuple[torch.Tensor, Optional[torch.Tensor], EventOverlap]:
        """COLLECTIVE. (sums of the tokens' rows and biases, sums of their weights, event)."""
        self._comm()
        settings = config or self.get_combine_config(self.group_size)
        biases = (bias,) if isinstance(bias, torch.Tensor) else tuple(bias or ())
        with (
            self._streams.operation(
                previous_event, async_finish, allocate_on_comm_stream
            ) as operation,
            torch.no_grad(),
        ):
            operation.reads(x, topk_weights, biases)
            sums = self._normal.combine(
                x,
                handle,
                topk_weights,
                tuple(bias for bias in biases if bias is not None),
                settings,
            )
            operation.makes(sums.x, sums.weights)
        return sums.x, sums.weights, operation.overlap()

    def internode_dispatch(self, *args: Any, **options: Any) -> Any:
        """dispatch: which ranks are near is Tern's business."""
        return self.dispatch(*args, **options)

    def internode_combine(self, *args: Any, **options: Any) -> Any:
        return self.combine(*args, **options)

    # ---- Low latency

    def low_latency_dispatch(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        num_max_dispatch_tokens_per_rank: int,
        num_experts: int,
        cumulative_local_expert_recv_stats: Optional[torch.Tensor] = None,
        dispatch_wait_recv_cost_stats: Optional[torch.Tensor] = None,
        use_fp8: bool = True,
        round_scale: bool = False,
        use_ue8m0: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        **others: Any,
    ) -> Tuple[Rows, torch.Tensor, Tuple[Any, ...], EventOverlap, Optional[Callable[[], None]]]:
        """COLLECTIVE. (rows [local experts, ranks * most tokens, hidden], or them and scales; rows
        of each expert; handle; event; hook)."""
        self._comm()
        _refuse(others)
        assert not use_ue8m0 or round_scale, "use_ue8m0 needs round_scale"
        cast = None
        if use_fp8:
            cast = "fp8_ue8m0" if use_ue8m0 else "fp8_pow2" if round_scale else "fp8"
        return self._low_latency.dispatch(
            x,
            topk_idx,
            num_max_dispatch_tokens_per_rank,
            num_experts,
            cumulative_local_expert_recv_stats,
            dispatch_wait_recv_cost_stats,
            cast,
            async_finish,
            return_recv_hook,
        )

    def low_latency_combine(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        topk_weights: torch.Tensor,
        handle: Tuple[Any, ...],
        use_logfmt: bool = False,
        zero_copy: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        out: Optional[torch.Tensor] = None,
        combine_wait_recv_cost_stats: Optional[torch.Tensor] = None,
        **others: Any,
    ) -> Tuple[torch.Tensor, EventOverlap, Optional[Callable[[], None]]]:
        """COLLECTIVE. (sums of weight * row over a token's choices, event, hook). topk_idx: that of
        the dispatch."""
        self._comm()
        _refuse(others)
        assert topk_idx.shape == topk_weights.shape, "topk_idx and topk_weights differ in shape"
        return self._low_latency.combine(
            x,
            topk_weights,
            handle,
            use_logfmt,
            zero_copy,
            async_finish,
            return_recv_hook,
            out,
            combine_wait_recv_cost_stats,
        )

    def get_next_low_latency_combine_buffer(self, handle: Tuple[Any, ...]) -> torch.Tensor:
        """Where a combine with zero_copy=True reads its rows."""
        return self._low_latency.combine_input(handle)

    def clean_low_latency_buffer(
        self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int
    ) -> None:
        """COLLECTIVE."""
        self._comm()
        self._low_latency.clean(num_max_dispatch_tokens_per_rank, hidden, num_experts)

    def low_latency_update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> None:
        """Leaves a rank out of low-latency operations, or takes it in again."""
        self._low_latency.masks().ll_mask_set(rank_to_mask, mask)

    def low_latency_query_mask_buffer(self, mask_status: torch.Tensor) -> None:
        """int32 [ranks]: becomes 1 for ranks that are left out, else 0."""
        self._low_latency.masks().ll_mask(mask_status)

    def low_latency_clean_mask_buffer(self) -> None:
        """Takes all ranks in again."""
        self._low_latency.masks().ll_mask_set(-1, False)


def _refuse(others: Dict[str, Any]) -> None:
    """Arguments that forks of DeepEP have: none is known here, and none is passed over, unless it
    asks for nothing."""
    for name, value in others.items():
        if value is not None and value is not False:
            raise tern.Unsupported(
                f"{name} is no argument of DeepEP's Buffer: forks have such, Tern does not"
            )


def _parts(x: Rows) -> List[torch.Tensor]:
    """What a dispatch sends of each token: its row; of 8 bits, also its scales."""
    if not isinstance(x, (tuple, list)):
        return [x]
    assert len(x) == 2, f"x has {len(x)} parts: it must be rows, or (rows, scales)"
    return list(x)
