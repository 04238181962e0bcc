# SPDX-License-Identifier: Apache-2.0
"""Low-latency dispatch and combine: small batches, without a route, in slabs of a fixed shape
(tern_ll.h)."""

import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Dict, NamedTuple, Optional, Tuple

from . import tensors
from .errors import BadState, Unsupported
from .route import BF16, CASTS, FP32
from .tensors import Tensor, pointer

if TYPE_CHECKING:
    import torch

    from .ep import EP

_LAYOUTS = ("expert", "rank")
_WEIGHTS = ("combine", "dispatch", "ahead")
_COMPRESSIONS = (None, "fp8", "log10")
_SEND, _RECEIVE = 1, 2
Make = Callable[[], "torch.Tensor"]
Part = Tuple[Any, ...]  # shape, first element, type; (): none
_LINE = 32  # parts of a block begin at a multiple of so many words


@dataclass
class Batch:
    """What a low-latency dispatch brought. L local experts, R ranks, T max_tokens, H hidden; rows
    beyond a count are whatever they were."""

    x: Any  # [L, R * T, H]; layout "rank": [R * T, H]
    # of a cast: [L, R * T, words], the rows of a word together; layout "rank": [R * T, words]
    scales: Any
    block: Any  # the memory of the next three, which are made when they are first looked at
    # int32 [L] rows of each expert; layout "rank": [R] rows from each source
    counts: Any = field(init=False)
    ranges: Any = field(init=False)  # int64 [L, R]: first row << 32 | number; layout "rank": None
    source: Any = field(init=False)  # int32 [L, R * T] token at its source; layout "rank": [R * T]
    topk_idx: Any  # layout "rank": [R * T, topk], local experts or -1; else None
    topk_weights: Any  # likewise, their weights; None if there were none
    hook: Optional[Callable[[], None]]  # receives; None if all is there
    lane: int = 0
    num_tokens: int = 0
    topk: int = 0
    weights: str = "combine"
    layout: str = "expert"
    parts: Optional[Dict[str, Part]] = field(default=None, repr=False)  # of the block

    def __getattr__(self, name: str) -> Any:
        parts = self.__dict__.get("parts") or {}
        if name not in parts:
            raise AttributeError(f"a batch has no {name}")
        made = tensors.part_of(self.block, *parts[name]) if parts[name] else None
        setattr(self, name, made)
        return made


class Plan(NamedTuple):
    """What dispatches of one shape share: made, with all checks of types, shapes and words, by the
    first of them, and looked up by the others, which check where their tensors lie."""

    num_tokens: int
    topk: int
    prepared: bytes  # the fields that are the same in each
    # What makes each output.
    x: Make
    scales: Optional[Make]
    block: Make
    parts: Dict[str, Part]
    apart: Tuple[Make, Optional[Make], Make]  # counts, ranges, source
    counts: int  # bytes of the block before them, likewise; the ranges come first
    source: int
    ranges: bool  # by expert
    topk_idx: Optional[Make]  # by rank
    topk_weights: Optional[Make]


def dispatch(
    ep: "EP",
    x: Tensor,
    topk_idx: Tensor,
    topk_weights: Optional[Tensor],
    max_tokens: Optional[int],
    cast: Optional[str],
    layout: str,
    weights: str,
    lane: int,
    hook: bool,
    sum_counts: Optional[Tensor],
    wait_ns: Optional[Tensor],
    num_sms: Optional[int],
    apart: bool = False,
) -> Batch:
    """apart: makes counts, ranges and source at once, as tensors of their own, which cost less than
    parts of a block for a caller that looks at all of them."""
    comm = ep.comm
    device, plain = comm.device, comm.torch.Tensor
    tokens = x if type(x) is plain else tensors.look("x", x)
    ids = topk_idx if type(topk_idx) is plain else tensors.look("topk_idx", topk_idx)
    if topk_weights is not None:
        topk_weights = tensors.look("topk_weights", topk_weights)
    if max_tokens is not None:
        max_tokens = tensors.number("max_tokens", max_tokens, 1, ep.ll_tokens)
    fast = comm.fast_empty()
    words = (max_tokens, cast, layout, weights, fast)
    key: Tuple[Any, ...] = (tokens.shape, tokens.dtype, ids.shape, ids.dtype, words)
    if topk_weights is not None:
        key += (topk_weights.shape, topk_weights.dtype)
    try:
        plan = ep.plans.get(key)
    except TypeError:  # a word that is a list, say
        plan = None
    if (
        plan is None
        or not (tokens.device == ids.device == device)
        or not (tokens.is_contiguous() and ids.is_contiguous())
        or not (topk_weights is None or tensors.lies_well(topk_weights, device))
    ):
        plan = _plan(ep, tokens, ids, topk_weights, max_tokens, cast, layout, weights, fast)
        ep.keep_plan(key, plan)
    if tokens.requires_grad:
        _no_gradient("x", tokens)
    if topk_weights is not None and topk_weights.requires_grad:
        _no_gradient("topk_weights", topk_weights)
    if lane != 0:
        lane = tensors.number("lane", lane, 0, 2**32 - 1)
    if sum_counts is not None:
        sum_counts = _statistics(ep, "sum_counts", sum_counts, ep.num_local_experts)
    if wait_ns is not None:
        wait_ns = _statistics(ep, "wait_ns", wait_ns, comm.size)
    got = plan.x()
    scales = None if plan.scales is None else plan.scales()
    block = counts = ranges = source = None
    if apart:
        make_counts, make_ranges, make_source = plan.apart
        counts, source = make_counts(), make_source()
        ranges = None if make_ranges is None else make_ranges()
        at_counts, at_source = counts.data_ptr(), source.data_ptr()
        at_ranges = None if ranges is None else ranges.data_ptr()
    else:
        block = plan.block()
        first = block.data_ptr()
        at_counts, at_source = first + plan.counts, first + plan.source
        at_ranges = first if plan.ranges else None
    got_idx = None if plan.topk_idx is None else plan.topk_idx()
    got_weights = None if plan.topk_weights is None else plan.topk_weights()
    batch = Batch(
        got,
        scales,
        block,
        got_idx,
        got_weights,
        None,
        lane,
        plan.num_tokens,
        plan.topk,
        weights,
        layout,
        plan.parts,
    )
    if apart:
        batch.counts, batch.ranges, batch.source = counts, ranges, source
    call = ep.raw.ll_dispatch
    values = (
        tokens.data_ptr(),
        ids.data_ptr(),
        None if topk_weights is None else topk_weights.data_ptr(),
        num_sms,
        None if sum_counts is None else sum_counts.data_ptr(),
        None if wait_ns is None else wait_ns.data_ptr(),
        got.data_ptr(),
        None if scales is None else scales.data_ptr(),
        at_counts,
        at_ranges,
        at_source,
        None if got_idx is None else got_idx.data_ptr(),
        None if got_weights is None else got_weights.data_ptr(),
    )
    stream = comm.stream()
    call(stream, plan.prepared, lane, _SEND if hook else 0, *values)
    latest = ep.lanes[lane] = weakref.ref(batch)
    ep.settle()
    if hook:
        written = (got, scales, got_idx, got_weights, sum_counts, wait_ns)
        written += (block,) if block is not None else (counts, ranges, source)
        kept = ((tokens, ids, topk_weights), written)
        given = (plan.prepared, lane, _RECEIVE) + values
        batch.hook = _hook(ep, call, given, lane, latest, kept, stream)
    elif sum_counts is not None or wait_ns is not None:
        tensors.wrote(sum_counts, wait_ns)
    return batch


def _plan(
    ep: "EP",
    tokens: "torch.Tensor",
    ids: "torch.Tensor",
    topk_weights: Optional["torch.Tensor"],
    max_tokens: Optional[int],
    cast: Optional[str],
    layout: str,
    weights: str,
    fast: Optional[Callable[..., "torch.Tensor"]],
) -> Plan:
    import torch

    comm = ep.comm
    tensors.check(comm, "x", tokens, BF16, ("tokens", "hidden"))
    _no_gradient("x", tokens)
    num_tokens, hidden = map(int, tokens.shape)
    tensors.check(comm, "topk_idx", ids, tensors.IDS, (num_tokens, "topk"))
    if topk_weights is not None:
        tensors.check(comm, "topk_weights", topk_weights, FP32, tuple(ids.shape))
    most = ep.ll_tokens if max_tokens is None else max_tokens
    topk = int(ids.shape[1])
    prepared = ep.raw.ll_dispatch_args(
        idx_bytes=ids.element_size(),
        num_tokens=num_tokens,
        topk=topk,
        max_tokens=most,
        hidden=hidden,
        cast=tensors.choice("cast", cast, CASTS),
        weights=tensors.choice("weights", weights, _WEIGHTS),
        layout=tensors.choice("layout", layout, _LAYOUTS),
    )
    num_ranks, by_rank = comm.size, layout == "rank"
    rows, first = num_ranks * most, () if by_rank else (ep.num_local_experts,)

    def make(
        shape: Tuple[int, ...],
        dtype: "torch.dtype",
        strides: Optional[Tuple[int, ...]] = None,
    ) -> Make:
        return tensors.maker(fast, comm.device, shape, strides or tensors.dense(shape), dtype)

    scales = None
    if cast is not None:
        is_packed = cast == "fp8_ue8m0"
        blocks = (hidden + 127) // 128
        words = (blocks + 3) // 4 if is_packed else blocks
        kind = torch.int32 if is_packed else torch.float32
        strides = (1, rows) if by_rank else (rows * words, 1, rows)  # the rows of a word together
        scales = make(first + (rows, words), kind, strides)
    num_counts = num_ranks if by_rank else ep.num_local_experts
    at_counts = 0 if by_rank else _lines(2 * ep.num_local_experts * num_ranks)
    at_source = at_counts + _lines(num_counts)
    num_words = at_source + (rows if by_rank else ep.num_local_experts * rows)
    wide = torch.bfloat16 if cast is None else getattr(torch, "float8_e4m3fn", torch.uint8)
    return Plan(
        num_tokens,
        topk,
        prepared,
        x=make(first + (rows, hidden), wide),
        scales=scales,
        block=make((_lines(num_words),), torch.int32),
        parts={
            "counts": ((num_counts,), at_counts, torch.int32),
            "source": (first + (rows,), at_source, torch.int32),
            "ranges": () if by_rank else (first + (num_ranks,), 0, torch.int64),
        },
        apart=(
            make((num_counts,), torch.int32),
            None if by_rank else make(first + (num_ranks,), torch.int64),
            make(first + (rows,), torch.int32),
        ),
        counts=4 * at_counts,
        source=4 * at_source,
        ranges=not by_rank,
        topk_idx=make((rows, topk), torch.int32) if by_rank else None,
        topk_weights=(
            make((rows, topk), torch.float32) if by_rank and topk_weights is not None else None
        ),
    )


def _lines(words: int) -> int:
    """Words of whole lines."""
    return -(-words // _LINE) * _LINE


def combine(
    ep: "EP",
    batch: Batch,
    y: Tensor,
    topk_weights: Optional[Tensor],
    *,
    compression: Optional[str],
    out: Optional[Tensor],
    hook: bool,
    wait_ns: Optional[Tensor],
    num_sms: Optional[int],
) -> Tuple["torch.Tensor", Optional[Callable[[], None]]]:
    comm = ep.comm
    latest = ep.lanes.get(batch.lane)
    if latest is None or latest() is not batch:
        raise BadState(
            f"the batch is not what lane {batch.lane} of this EP object dispatched last: "
            "combine follows its dispatch"
        )
    rows = tensors.check(comm, "y", y, BF16, batch.x.shape)
    if rows.requires_grad:
        _no_gradient("y", rows)
    shape = (batch.num_tokens, rows.shape[-1])
    if topk_weights is not None:
        topk_weights = tensors.check(
            comm, "topk_weights", topk_weights, FP32, (batch.num_tokens, batch.topk)
        )
        if topk_weights.requires_grad:
            _no_gradient("topk_weights", topk_weights)
    elif batch.weights != "dispatch":
        tensors.refuse(
            f"topk_weights is None: a batch with weights='{batch.weights}' has them from its combine"
        )
    if wait_ns is not None:
        wait_ns = _statistics(ep, "wait_ns", wait_ns, comm.size)
    sums = (
        tensors.matrix(comm, rows, *shape)
        if out is None
        else tensors.target(comm, "out", out, BF16, shape)
    )
    call = ep.raw.ll_combine
    values = (
        rows.data_ptr(),
        pointer(topk_weights),
        sums.data_ptr(),
        num_sms,
        0 if compression is None else tensors.choice("compression", compression, _COMPRESSIONS),
        pointer(wait_ns),
    )
    stream = comm.stream()
    call(stream, batch.lane, _SEND if hook else 0, *values)
    ep.settle()
    if hook:
        kept = ((rows, topk_weights), (sums, wait_ns))
        given = (batch.lane, _RECEIVE) + values
        return sums, _hook(ep, call, given, batch.lane, latest, kept, stream)
    if out is not None or wait_ns is not None:
        tensors.wrote(None if out is None else sums, wait_ns)
    return sums, None


def _hook(
    ep: "EP",
    call: Callable[..., None],
    given: Tuple[Any, ...],
    lane: int,
    batch: "weakref.ref[Batch]",
    kept: Tuple[Tuple[Any, ...], Tuple[Any, ...]],
    sent: int,
) -> Callable[[], None]:
    """A function that issues the receive phase of an operation that was sent, on the stream that is
    current then. It keeps the tensors that the operation reads and writes, `kept`, until it has
    received, once; if it receives on another stream than it was sent on, torch's allocator is
    told."""
    comm, box = ep.comm, [kept]

    def receive() -> None:
        if not box or ep.lanes.get(lane) is not batch:
            raise BadState(f"there is nothing to receive on lane {lane}: this hook is over")
        stream = comm.stream()
        call(stream, *given)
        ep.settle()
        read, written = box.pop()
        if stream != sent and comm.machine == "cuda":
            current = comm.torch.cuda.current_stream(comm.device)
            for tensor in read + written:
                if tensor is not None:
                    tensor.record_stream(current)
        tensors.wrote(*written)

    return receive


def _statistics(
    ep: "EP", name: str, value: Optional[Tensor], length: int
) -> Optional["torch.Tensor"]:
    return None if value is None else tensors.target(ep.comm, name, value, ["int64"], (length,))


def _no_gradient(name: str, tensor: "torch.Tensor") -> None:
    import torch

    if tensor.requires_grad and torch.is_grad_enabled():
        raise Unsupported(
            f"{name} requires a gradient, and low-latency operations have none: routes have"
        )
