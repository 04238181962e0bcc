# SPDX-License-Identifier: Apache-2.0
"""Routes: what one table of expert ids means for every rank, and dispatch and combine along it."""

import weakref
from dataclasses import dataclass
from itertools import count
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Union,
)

from . import _tern, tensors
from .errors import InvalidArgument, NoSpace
from .tensors import Tensor

if TYPE_CHECKING:
    import torch

    from .ep import EP

LAYOUTS = ("rank", "expert")
CASTS = (None, "fp8", "fp8_pow2", "fp8_ue8m0")
BF16, FP32 = ("bfloat16",), ("float32",)


@dataclass(frozen=True)
class RouteCounts:
    """What this rank receives: struct tern_route_counts."""

    num_rows: int  # padding included
    num_tokens: int  # (token, rank) pairs
    rank_counts: Tuple[int, ...]  # pairs from each rank
    expert_counts: Tuple[int, ...]  # choices of each local expert, without padding
    expert_offsets: Optional[Tuple[int, ...]]  # first row of each, and the end; expert layout only


class Rows(NamedTuple):
    """What a dispatch brought. All tensors but scales and x of a cast are as the senders had
    them."""

    x: Any  # the rows, [num_rows, hidden]; a tuple if a tuple was sent
    scales: Optional["torch.Tensor"]  # of a cast
    topk_idx: Optional["torch.Tensor"]  # rank layout: [num_rows, topk], local experts or -1
    # rank layout: [num_rows, topk], 0 where not local; expert layout: [num_rows]
    topk_weights: Optional["torch.Tensor"]
    source: Optional["torch.Tensor"]  # [num_rows, 2]: rank, token there


class Sums(NamedTuple):
    """What a combine brought home."""

    x: "torch.Tensor"  # [tokens, hidden]
    weights: Optional["torch.Tensor"]  # [tokens, topk]


class Plan(NamedTuple):
    """What dispatches of one shape share: made, with all checks of types, shapes and words, by the
    first of them, and looked up by the others, which check where their tensors lie."""

    prepared: bytes  # the fields that are the same in each
    outputs: List[Tuple[Tuple[int, ...], "torch.dtype"]]  # the shape of a row, the type
    shapes: bytes  # the same for tensors.windows, with
    views: List[Optional["torch.dtype"]]
    num_rows_out: int  # of the outputs, the first are rows; then come these, if they are wanted:
    has_idx: bool
    has_weights: bool
    has_source: bool


# Routes by number, as what is compiled knows them.
ROUTES: "weakref.WeakValueDictionary[int, Route]" = weakref.WeakValueDictionary()
_numbers = count()


class Route:
    """COLLECTIVE to make, by EP.route. It may be used any number of times, also by a backward pass,
    which keeps it."""

    def __init__(self, ep: "EP", topk_idx: Tensor, layout: str, expert_alignment: int) -> None:
        self.ep = ep
        self.layout = layout
        self._fixed = {
            "layout": tensors.choice("layout", layout, LAYOUTS),
            "expert_alignment": tensors.number("expert_alignment", expert_alignment, 1, 2**20),
        }
        self.run = 0  # how often it was updated
        self.number = next(_numbers)
        ROUTES[self.number] = self
        ids = self._check(topk_idx)
        self._raw = _tern.Route(ep.raw, ep.comm.stream(), **self._fields(ids))
        self._keep()
        self.topk = int(ids.shape[1])
        self._become(ids)

    def _check(self, topk_idx: Tensor) -> "torch.Tensor":
        return tensors.check(self.ep.comm, "topk_idx", topk_idx, tensors.IDS, ("tokens", "topk"))

    def _fields(self, ids: "torch.Tensor") -> Dict[str, int]:
        return {
            "topk_idx": ids.data_ptr(),
            "idx_bytes": ids.element_size(),
            "num_tokens": int(ids.shape[0]),
            "topk": int(ids.shape[1]),
            **self._fixed,
        }

    def _keep(self) -> None:
        """Before an operation that may go into a CUDA graph, which needs the route until the EP object
        is closed, or this is."""
        if tensors.capturing(self.ep.comm):
            self.ep.captured[self.number] = self._raw

    def _become(self, ids: "torch.Tensor") -> None:
        """After the library has taken the ids: what it refuses must leave the old sizes, by which
        memory for its outputs is made."""
        self.num_tokens = int(ids.shape[0])
        self.idx_bytes = ids.element_size()
        self._ids_type = ids.dtype
        self._form = (self.layout, self.num_tokens, self.topk, ids.dtype)
        self._counts: Optional[RouteCounts] = None
        self.ep.settle()

    def update(self, topk_idx: Tensor) -> None:
        """COLLECTIVE: the route of another batch, of the same topk, in place of this one. Not
        between a forward pass along it and its backward pass, which is refused then."""
        ids = self._check(topk_idx)
        self._keep()
        self._raw.update(self.ep.comm.stream(), **self._fields(ids))
        self.run += 1
        self._become(ids)

    @property
    def counts(self) -> RouteCounts:
        """What this rank receives. Waits for it, the first time, which raises if an id of this rank
        was out of range; that counts as -1, and the next time the counts are here."""
        if self._counts is None:
            got = self._raw.wait(self.ep.num_local_experts)
            rows, pairs, ranks, experts, offsets, bad_id = got
            self._counts = RouteCounts(
                rows,
                pairs,
                tuple(ranks),
                tuple(experts),
                None if offsets is None else tuple(offsets),
            )
            if bad_id is not None:
                self.ep.was_told(bad_id)
                raise bad_id
        return self._counts

    def learn(self) -> RouteCounts:
        """counts; an id out of range is left to EP.synchronize."""
        try:
            return self.counts
        except InvalidArgument as error:
            self.ep.bad_ids.append(error.with_traceback(None))
            return self.counts

    def dispatch(
        self,
        x: Union[Tensor, Sequence[Tensor]],
        topk_weights: Optional[Tensor] = None,
        *,
        cast: Optional[str] = None,
        num_rows: Optional[int] = None,
        topk_idx: bool = True,
        source: bool = False,
        zero_padding: bool = True,
        num_sms: Optional[int] = None,
    ) -> Rows:
        """COLLECTIVE. Sends the rows x, [tokens, columns] of any type, or several such matrices a
        token, to the ranks of their experts. All ranks give the same types and columns.

        num_rows: rows of the outputs; default: what the route's counts say, for which the call
        waits, and which may raise, before anything is sent. With a number it waits for nobody, and
        rows that have no room are left out. topk_idx, source: whether to return them. zero_padding:
        rows that nobody wrote are zeros. cast: x is BF16 and travels as FP8 with scales.

        Differentiable in x and topk_weights if x is one BF16 matrix without a cast; the backward
        pass is a combine, and as COLLECTIVE.
        """
        parts = x if isinstance(x, (tuple, list)) else (x,)
        compiling, wanted = tensors.is_compiling(), _wants_gradient(topk_weights, *parts)
        if not compiling and not wanted:
            return self.plain_dispatch(
                x, topk_weights, cast, num_rows, topk_idx, source, zero_padding, num_sms
            )
        given: Dict[str, Any] = dict(
            cast=cast,
            num_rows=num_rows,
            topk_idx=topk_idx,
            source=source,
            zero_padding=zero_padding,
            num_sms=num_sms,
        )
        if compiling:
            from .compiled import dispatch

            return dispatch(self, x, topk_weights, given, wanted)
        return _autograd().dispatch(self, x, topk_weights, given)

    def plain_dispatch(
        self,
        x: Union[Tensor, Sequence[Tensor]],
        topk_weights: Optional[Tensor],
        cast: Optional[str],
        num_rows: Optional[int],
        topk_idx: bool,
        source: bool,
        zero_padding: bool,
        num_sms: Optional[int],
        empty: Optional[Callable[..., "torch.Tensor"]] = None,
    ) -> Rows:
        """Dispatch without gradients. empty: makes the outputs, of a shape and a type; default: in
        window memory, or what a CUDA graph has if one is captured. Others go through staging."""
        ep = self.ep
        comm = ep.comm
        device, plain = comm.device, comm.torch.Tensor
        several = isinstance(x, (tuple, list))
        cast_number = 0 if cast is None else tensors.choice("cast", cast, CASTS)
        key: Tuple[Any, ...] = (
            self._form,
            cast_number,
            bool(topk_idx),
            bool(source),
            bool(zero_padding),
        )
        payloads, lie_well = [], True
        for part in x if several else (x,):
            tensor = part if type(part) is plain else tensors.look("x", part)
            strides = None
            if not tensor.is_contiguous():
                tensor = tensors.spread(tensor)
                strides = tensor.stride()
            key += (tensor.shape, tensor.dtype, strides)
            lie_well = lie_well and tensor.device == device
            payloads.append(tensor)
        if topk_weights is not None:
            if type(topk_weights) is not plain:
                topk_weights = tensors.look("topk_weights", topk_weights)
            key += (topk_weights.shape, topk_weights.dtype)
            lie_well = lie_well and tensors.lies_well(topk_weights, device)
        plan = ep.plans.get(key)
        if plan is None or not lie_well:
            plan = self._plan(payloads, topk_weights, *key[1:5])
            ep.keep_plan(key, plan)
        rows = (
            self.counts.num_rows
            if num_rows is None
            else tensors.number("num_rows", num_rows, 0, 2**31 - 1)
        )
        if empty is None and tensors.capturing(comm):
            empty = tensors.graph_memory(comm)
        if empty is None:
            made = tensors.windows(comm, rows, plan.shapes, plan.views)
        else:
            made = [empty((rows,) + columns, dtype) for columns, dtype in plan.outputs]
        out, others = made[: plan.num_rows_out], iter(made[plan.num_rows_out :])
        got_idx = next(others) if plan.has_idx else None
        got_weights = next(others) if plan.has_weights else None
        got_source = next(others) if plan.has_source else None
        # As many rows as come have no padding among them but that of experts, which the kernel fills.
        if zero_padding and num_rows is not None:
            for tensor in made:
                tensor.fill_(-1 if tensor is got_idx or tensor is got_source else 0)
        self._keep()
        self._raw.dispatch(
            comm.stream(),
            plan.prepared,
            rows,
            num_sms,
            None if topk_weights is None else topk_weights.data_ptr(),
            None if got_idx is None else got_idx.data_ptr(),
            None if got_weights is None else got_weights.data_ptr(),
            None if got_source is None else got_source.data_ptr(),
            *[tensor.data_ptr() for tensor in payloads],
            *[tensor.data_ptr() for tensor in out],
        )
        ep.settle()
        scales = out.pop(1) if cast_number else None
        return Rows(tuple(out) if several else out[0], scales, got_idx, got_weights, got_source)

    def _plan(
        self,
        payloads: Sequence["torch.Tensor"],
        topk_weights: Optional["torch.Tensor"],
        cast: int,
        topk_idx: bool,
        source: bool,
        zero_padding: bool,
    ) -> Plan:
        import torch

        comm, by_expert = self.ep.comm, self.layout == "expert"
        for i, part in enumerate(payloads):
            kinds = BF16 if cast and i == 0 else (tensors.type_name(part),)
            name = "x" if i == 0 else f"x[{i}]"
            tensors.check(comm, name, part, kinds, (self.num_tokens, "columns"), dense=False)
        if topk_weights is not None:
            tensors.check(comm, "topk_weights", topk_weights, FP32, (self.num_tokens, self.topk))
        outputs: List[Tuple[Tuple[int, ...], "torch.dtype"]]
        outputs = [((part.shape[1],), part.dtype) for part in payloads]
        if cast:
            hidden = payloads[0].shape[1]
            outputs[0] = ((hidden,), getattr(torch, "float8_e4m3fn", torch.uint8))
            outputs.insert(1, _scales(cast, hidden))
        num_rows_out = len(outputs)
        rows_out = [torch.empty((1,) + columns, dtype=dtype) for columns, dtype in outputs]
        x = payloads[0]
        tensors.check_channels("x", x)
        tensors.check_row(
            "x",
            x,
            x.shape[1] * x.element_size(),
            32 if cast else 16,
            sum(row.numel() * row.element_size() for row in rows_out),
            self.ep.max_row_bytes,
        )
        has_idx, has_weights = topk_idx and not by_expert, topk_weights is not None
        if has_idx:
            outputs.append(((self.topk,), self._ids_type))
        if has_weights:
            outputs.append((() if by_expert else (self.topk,), torch.float32))
        if source:
            outputs.append(((2,), torch.int32))
        prepared = self._raw.dispatch_args(
            tuple(map(tensors.rows_of, payloads)),
            tuple(map(tensors.rows_of, rows_out)),
            cast=cast,
            zero_padding=by_expert and zero_padding,
        )
        shapes, views = tensors.row_shapes(comm, outputs)
        return Plan(prepared, outputs, shapes, views, num_rows_out, has_idx, has_weights, source)

    def combine(
        self,
        x: Union[Tensor, Rows],
        weights: Optional[Tensor] = None,
        *,
        bias: Union[Tensor, Sequence[Tensor], None] = None,
        out: Optional[Tensor] = None,
        num_sms: Optional[int] = None,
    ) -> Sums:
        """COLLECTIVE. Brings the BF16 rows x, as dispatch laid them out, home, where a token's rows
        are added to the biases, in FP32, and rounded once. No weighting. weights, float32 as
        dispatch gives them, come home too.

        Differentiable in x and bias; the backward pass is a dispatch along this route, and as
        COLLECTIVE.
        """
        rows = x.x if isinstance(x, Rows) else x
        biases = tuple(bias) if isinstance(bias, (tuple, list)) else () if bias is None else (bias,)
        if tensors.is_compiling():
            from .compiled import combine

            return combine(self, rows, weights, biases, out, num_sms)
        if _wants_gradient(rows, *biases, weights):
            return _autograd().combine(self, rows, weights, biases, out, num_sms)
        return self.plain_combine(rows, weights, biases, out, num_sms)

    def plain_combine(
        self,
        x: Tensor,
        weights: Optional[Tensor],
        biases: Sequence[Tensor],
        out: Optional[Tensor],
        num_sms: Optional[int],
    ) -> Sums:
        """Combine without gradients."""
        comm = self.ep.comm
        rows = tensors.check(comm, "x", x, BF16, ("rows", "hidden"))
        num_rows, hidden = rows.shape
        tensors.check_row("x", rows, 2 * hidden, 16, 2 * hidden, self.ep.max_row_bytes)
        sums_shape = (self.num_tokens, hidden)
        if len(biases) > 2:
            tensors.refuse(f"{len(biases)} biases: combine adds one or two")
        added = [tensors.check(comm, "bias", bias, BF16, sums_shape) for bias in biases]
        sums_weights = None
        if weights is not None:
            shape = (num_rows,) if self.layout == "expert" else (num_rows, self.topk)
            weights = tensors.check(comm, "weights", weights, FP32, shape)
            sums_weights = tensors.matrix(comm, weights, self.num_tokens, self.topk)
        if out is None:
            sums = tensors.matrix(comm, rows, *sums_shape)
        else:
            sums = tensors.target(comm, "out", out, BF16, sums_shape)

        def issue() -> None:
            self._raw.combine(
                comm.stream(),
                2 * hidden,
                rows.data_ptr(),
                num_rows,
                None if weights is None else weights.data_ptr(),
                sums.data_ptr(),
                None if sums_weights is None else sums_weights.data_ptr(),
                added[0].data_ptr() if added else None,
                added[1].data_ptr() if len(added) > 1 else None,
                num_sms,
            )

        self._keep()
        try:
            issue()
        except NoSpace:  # refused before anything was issued
            if self.ep.limits_staging or tensors.capturing(comm):
                raise
            if not self.ep.combine_push or self.layout == "expert":
                rows = comm.empty(rows.shape, rows.dtype).copy_(rows)
            if weights is not None:
                weights = comm.empty(weights.shape, weights.dtype).copy_(weights)
            issue()
        self.ep.settle()
        if out is not None:
            tensors.wrote(sums)
        return Sums(sums, sums_weights)

    def close(self) -> None:
        """Local. Work already issued with the route finishes undisturbed. Not before the last replay of
        a CUDA graph that has the route."""
        self._raw.close()
        self.ep.captured.pop(self.number, None)


def _autograd() -> Any:
    """The module, which needs torch."""
    if not _AUTOGRAD:
        from . import autograd

        _AUTOGRAD.append(autograd)
    return _AUTOGRAD[0]


_AUTOGRAD: List[Any] = []


def _scales(cast: int, hidden: int) -> Tuple[Tuple[int, ...], "torch.dtype"]:
    """Columns and type of the scales of a row."""
    import torch

    blocks = (hidden + 127) // 128
    return ((((blocks + 3) // 4 * 4),), torch.uint8) if cast == 3 else ((blocks,), torch.float32)


def _wants_gradient(*values: Any) -> bool:
    import torch

    if torch.is_grad_enabled():
        for value in values:
            if isinstance(value, torch.Tensor) and value.requires_grad:
                return True
    return False
