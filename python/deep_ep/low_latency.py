# SPDX-License-Identifier: Apache-2.0
"""The low-latency mode: DeepEP's slabs and handles over the lanes of an EP object.

DeepEP has two buffers, so that two operations may be under way; here each dispatch takes the other
one of two lanes. A combine goes with the latest dispatch of its lane: of handles, the last two are
good, unless larger buffers were made since.
"""

import contextlib
import struct
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple, Type

import torch

import tern
from tern import low_latency
from tern.tensors import capturing

from . import config, layout
from .event import EventOverlap
from .streams import Streams

LANES = 2
_TOPK = 16  # that an EP object has room for, unless more are asked for

# What the size hints were asked for, by their answers: a Buffer of such a size opens its lanes when
# it is made, while all ranks are certainly there, if all have asked.
_hints: Dict[int, Tuple[int, int, int]] = {}


def size_hint(num_max_tokens: int, hidden: int, num_experts: int) -> int:
    size = config.low_latency_bytes(num_max_tokens, hidden, num_experts)
    _hints[size] = num_max_tokens, hidden, num_experts
    return size


class LowLatency:
    def __init__(self, comm: tern.Communicator, streams: Streams, enable_shrink: bool) -> None:
        self.comm, self.streams, self.enable_shrink = comm, streams, enable_shrink
        self._ep: Optional[tern.EP] = None
        self._sizes = (0, 0, 0, 0)  # tokens, hidden, experts, topk
        self._lane = 0
        self._to_receive: Set[int] = set()  # lanes whose latest operation has a hook, not called yet
        self._combine_inputs: Dict[int, torch.Tensor] = {}
        # Graphs hold addresses: whether one has operations of this EP object, and what is in one
        # and was replaced by larger ones.
        self._is_captured = False
        self._left: List[tern.EP] = []
        self._left_inputs: List[torch.Tensor] = []
        self._bad_ids: List[tern.InvalidArgument] = []  # of EP objects that are gone

    def open_for(self, num_bytes: int) -> None:
        """COLLECTIVE: at once, if every rank knows what a buffer of this size is for."""
        sizes = _hints.get(num_bytes, (0, 0, 0))
        every = set(self.comm.allgather(struct.pack("3q", *sizes)))
        if every == {struct.pack("3q", *sizes)} and sizes[0] > 0:
            self.reserve(*sizes)

    def reserve(self, num_max_tokens: int, hidden: int, num_experts: int, topk: int = 1) -> tern.EP:
        """COLLECTIVE: an EP object with room for this."""
        tokens, most_hidden, experts, most_topk = self._sizes
        if (
            self._ep is None
            or experts != num_experts
            or num_max_tokens > tokens
            or hidden > most_hidden
            or topk > most_topk
        ):
            if capturing(self.comm):
                raise tern.BadState(
                    "a graph is being captured, and the low-latency buffers are too small: "
                    "run the same shapes once before"
                )
            self._may_be_replaced()
            self._replace()
            if experts != num_experts:
                tokens = most_hidden = most_topk = 0
            tokens, most_hidden = max(tokens, num_max_tokens), max(most_hidden, hidden)
            most_topk = max(most_topk, topk, _TOPK)
            self._ep = tern.EP(
                self.comm,
                num_experts=num_experts,
                max_topk=most_topk,
                ll_tokens=tokens,
                ll_hidden=most_hidden,
                ll_lanes=LANES,
                ll_mask=self.enable_shrink,
            )
            self._sizes = tokens, most_hidden, num_experts, most_topk
        return self._used()

    def _used(self) -> tern.EP:
        """The EP object, for an operation that is issued now: a graph will need it open."""
        assert self._ep is not None
        if not self._is_captured and capturing(self.comm):
            self._is_captured = True
        return self._ep

    def dispatch(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        num_max_tokens: int,
        num_experts: int,
        stats: Optional[torch.Tensor],
        wait_stats: Optional[torch.Tensor],
        cast: Optional[str],
        asynchronous: bool,
        with_hook: bool,
    ) -> Tuple[Any, torch.Tensor, Tuple[Any, ...], EventOverlap, Optional[Callable[[], None]]]:
        assert not (asynchronous and with_hook), (
            "async_finish and return_recv_hook exclude each other"
        )
        layout.check_statistics(stats, num_experts // self.comm.size, self.comm.device)
        hidden, topk = int(x.shape[1]), int(topk_idx.shape[1])
        ep = self.reserve(num_max_tokens, hidden, num_experts, topk)
        lane = self._lane

        def send() -> "tern.Batch":
            with torch.no_grad():
                batch = low_latency.dispatch(
                    ep,
                    x,
                    topk_idx,
                    None,
                    num_max_tokens,
                    cast,
                    "expert",
                    "combine",
                    lane,
                    with_hook,
                    None,
                    wait_stats,
                    None,
                    apart=True,
                )
                if stats is not None and not with_hook:
                    stats.add_(batch.counts)
            return batch

        if with_hook:
            batch, event = send(), EventOverlap(None)
        else:
            with self.streams.operation(async_finish=asynchronous) as operation:
                batch = send()
                operation.reads(x, topk_idx, stats, wait_stats)
                operation.makes(batch.x, batch.scales, batch.counts, batch.source, batch.ranges)
            event = operation.overlap()
        self._lane = (lane + 1) % LANES  # now: what is refused here alone must leave ranks on one lane
        self._to_receive.discard(lane)
        received = batch.x if cast is None else (batch.x, batch.scales)
        counts, hook = batch.counts, None
        if batch.hook is not None:
            hook = self._receiving(lane, _and_count(batch.hook, stats, counts))
        handle = (batch.source, batch.ranges, num_max_tokens, hidden, num_experts)
        return received, counts, _with_batch(handle, batch), event, hook

    def combine(
        self,
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        handle: Any,
        use_logfmt: bool,
        zero_copy: bool,
        asynchronous: bool,
        with_hook: bool,
        out: Optional[torch.Tensor],
        wait_stats: Optional[torch.Tensor],
    ) -> Tuple[torch.Tensor, EventOverlap, Optional[Callable[[], None]]]:
        assert not (asynchronous and with_hook), (
            "async_finish and return_recv_hook exclude each other"
        )
        assert not (zero_copy and use_logfmt), "zero_copy and use_logfmt exclude each other"
        batch = _batch_of(handle)
        if zero_copy:
            x = self._combine_inputs.get(batch.lane)
            assert x is not None and x.shape == batch.x.shape, (
                "zero_copy, and get_next_low_latency_combine_buffer was not called for this handle"
            )
        if self._ep is None:
            raise tern.BadState("there was no low-latency dispatch before this combine")
        ep = self._used()

        def send() -> Tuple[torch.Tensor, Optional[Callable[[], None]]]:
            with torch.no_grad():
                return ep.ll_combine(
                    batch,
                    x,
                    topk_weights,
                    compression="log10" if use_logfmt else None,
                    out=out,
                    hook=with_hook,
                    wait_ns=wait_stats,
                )

        if with_hook:
            sums, receive = send()
            assert receive is not None
            return sums, EventOverlap(None), self._receiving(batch.lane, receive)
        with self.streams.operation(async_finish=asynchronous) as operation:
            sums, _ = send()
            operation.reads(x, topk_weights, out, wait_stats)
            operation.makes(*(() if out is not None else (sums,)))
        return sums, operation.overlap(), None

    def _receiving(self, lane: int, receive: Callable[[], None]) -> Callable[[], None]:
        """The hook, for callers: until it is called there are no larger buffers."""
        self._to_receive.add(lane)

        def hook() -> None:
            receive()
            self._to_receive.discard(lane)

        return hook

    def combine_input(self, handle: Any) -> torch.Tensor:
        """Where zero_copy has its rows: of each lane one tensor, which stays."""
        batch = _batch_of(handle)
        shape, have = tuple(batch.x.shape), self._combine_inputs.get(batch.lane)
        if have is None or have.shape != shape:
            if have is not None and self._is_captured:
                self._left_inputs.append(have)
            have = torch.empty(shape, dtype=torch.bfloat16, device=self.comm.device)
            self._combine_inputs[batch.lane] = have
        return have

    def clean(self, num_max_tokens: int, hidden: int, num_experts: int) -> None:
        """COLLECTIVE. There is nothing to clean; ranks that do not come are masked, as they are in
        DeepEP's barrier."""
        ep = self.reserve(num_max_tokens, hidden, num_experts)
        if self.enable_shrink:
            device = self.comm.device
            nothing = torch.empty((0, 8), dtype=torch.bfloat16, device=device)
            ep.ll_dispatch(
                nothing,
                torch.empty((0, 1), dtype=torch.int64, device=device),
                max_tokens=1,
                lane=self._lane,
            )
            self._lane = (self._lane + 1) % LANES

    def masks(self) -> tern.EP:
        assert self.enable_shrink, "masks need a Buffer with enable_shrink=True"
        if self._ep is None:
            raise tern.BadState(
                "there are no low-latency buffers yet: call get_low_latency_rdma_size_hint on "
                "every rank before the Buffer is made, or clean_low_latency_buffer"
            )
        return self._used()

    def close(self) -> None:
        """COLLECTIVE. With enable_shrink nobody has to come: a rank that stops is here while the
        others go on, and they mask it. An id out of range that nobody was told of is raised behind
        it."""
        eps = [*self._left, self._ep] if self._ep is not None else self._left
        self._ep, self._left = None, []
        self._combine_inputs.clear()
        self._left_inputs.clear()
        if not eps:
            return
        try:
            self._meet(eps, (tern.Timeout, tern.Disconnected) if self.enable_shrink else ())
        finally:
            for ep in eps:
                ep.close()
        if self._bad_ids:
            raise self._bad_ids[0]

    def _may_be_replaced(self) -> None:
        """Raises while larger buffers, which need every rank to be there, would only cost those that
        work."""
        if self._ep is None:
            return
        if self._to_receive:
            raise tern.BadState(
                "the low-latency buffers are too small, and an operation has not been received in "
                "them: call its hook first"
            )
        if not self.enable_shrink:
            return
        self._ep.wait()
        masked = self._ep.ll_mask().nonzero().flatten().tolist()
        if masked:
            raise tern.BadState(
                f"the low-latency buffers are too small, and larger ones need every rank: {masked} are "
                "masked"
            )

    def _replace(self) -> None:
        """COLLECTIVE: no EP object, until a larger one is opened. What a graph has stays."""
        ep, self._ep = self._ep, None
        inputs = list(self._combine_inputs.values())
        self._combine_inputs.clear()
        if ep is None:
            return
        try:
            self._meet([ep], ())
        finally:
            if self._is_captured:
                self._left.append(ep)
                self._left_inputs += inputs
                self._is_captured = False
            else:
                ep.close()

    def _meet(self, eps: Sequence[tern.EP], may_miss: Tuple[Type[Exception], ...]) -> None:
        """COLLECTIVE: until nothing of theirs is under way, the latest one's last. Ranks that are
        masked need not come."""
        for ep in eps:
            ep.wait()
            self._bad_ids += ep.bad_ids
            ep.bad_ids.clear()
        if not self.enable_shrink or not bool(eps[-1].ll_mask().any()):
            with contextlib.suppress(*may_miss):
                self.comm.barrier()


def _and_count(
    receive: Callable[[], None], stats: Optional[torch.Tensor], counts: torch.Tensor
) -> Callable[[], None]:
    def hook() -> None:
        receive()
        if stats is not None:
            with torch.inference_mode():  # in which all may be written, whatever made it
                stats.add_(counts)

    return hook


def _with_batch(handle: Tuple[Any, ...], batch: "tern.Batch") -> Tuple[Any, ...]:
    """The batch rides on the handle's first tensor, and lets go of its own: a handle does not keep
    the rows."""
    batch.x = torch.empty(1, device="cpu").expand(batch.x.shape)
    batch.scales = batch.counts = batch.ranges = batch.source = batch.hook = None
    handle[0].deep_ep_batch = batch
    return handle


def _batch_of(handle: Any) -> "tern.Batch":
    batch = getattr(handle[0], "deep_ep_batch", None)
    if batch is None:
        raise ValueError("the handle is none that low_latency_dispatch gave")
    return batch
