# SPDX-License-Identifier: Apache-2.0
"""Dispatch and combine as operators of torch (torch.library.custom_op, from torch 2.4 on), so that
torch.compile sees a name, shapes and a backward pass, and looks no further.

Only what is being compiled comes here; programs that run as they are written call the package
directly. An operator takes tensors and numbers, so a route is its number here, with how often it
had been updated, and what is absent among outputs is a tensor without elements. A compiled graph
holds no route: the program keeps it until the backward pass is over.

Ranks must issue the same operations in the same order, also where one has another graph than the
others, for sizes of its own. So dispatch and combine have an effect, where torch knows such: they
stay in the order of the program, and stay there if nobody looks at what they bring. How many rows
come is an operator of its own, without an effect, as inductor wants to know all sizes of what has
one.

CUDA graphs have no place for them: what dispatch gives is window memory, which is others' once its
tensors are gone, whatever a graph still writes there. A tag says so, where torch has one; as it may
not look behind an effect (2.15 does not), an operator that finds itself captured refuses, too.
"""

import inspect
from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple

import torch

from . import tensors
from .errors import BadState, Unsupported
from .route import ROUTES, Route, Rows, Sums

# Operators say by their annotations what they take.
_Tensors = Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
_Pair = Tuple[torch.Tensor, torch.Tensor]
_DEFAULT = 0  # num_sms: the object's

# Whether operators have an order here.
HAS_EFFECTS = hasattr(torch.library, "EffectType") and hasattr(
    getattr(torch.library, "CustomOpDef", None), "register_effect"
)


class Operators(NamedTuple):
    num_rows: Any
    dispatch: Any
    combine: Any


def _route(number: int, run: int) -> Route:
    route = ROUTES.get(number)
    if route is None:
        raise BadState("the route is gone: what is compiled does not keep it for its backward pass")
    if route.run != run:
        raise BadState(
            f"the route was updated {route.run - run} times since the forward pass: "
            "its gradients go along the route that it took"
        )
    if tensors.capturing(route.ep.comm):
        raise Unsupported(
            "a CUDA graph is being captured, which would not keep the outputs of what is compiled: "
            "compile without CUDA graphs (mode='reduce-overhead'), or capture without compiling"
        )
    return route


def _num_rows(x: torch.Tensor, route: int, run: int) -> int:
    """As many as come. x is there because an operator has a tensor."""
    return _route(route, run).counts.num_rows


def _some_rows(x: torch.Tensor, route: int, run: int) -> int:
    return torch.library.get_ctx().new_dynamic_size()


def _none(like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return like.new_empty((0,), dtype=dtype)


def _dispatch(
    x: torch.Tensor,
    weights: Optional[torch.Tensor],
    route: int,
    run: int,
    topk: int,
    idx_bytes: int,
    by_expert: bool,
    num_rows: int,
    topk_idx: bool,
    source: bool,
    zero_padding: bool,
    num_sms: int,
) -> _Tensors:
    rows = _route(route, run).plain_dispatch(
        x,
        weights,
        cast=None,
        num_rows=num_rows,
        topk_idx=topk_idx,
        source=source,
        zero_padding=zero_padding,
        num_sms=num_sms or None,
    )
    ids = torch.int64 if idx_bytes == 8 else torch.int32
    return (
        rows.x,
        _none(x, torch.float32) if rows.topk_weights is None else rows.topk_weights,
        _none(x, ids) if rows.topk_idx is None else rows.topk_idx,
        _none(x, torch.int32) if rows.source is None else rows.source,
    )


def _dispatch_shapes(
    x: torch.Tensor,
    weights: Optional[torch.Tensor],
    route: int,
    run: int,
    topk: int,
    idx_bytes: int,
    by_expert: bool,
    num_rows: int,
    topk_idx: bool,
    source: bool,
    zero_padding: bool,
    num_sms: int,
) -> _Tensors:
    """Outputs as _dispatch makes them, for what only looks at shapes."""
    ids = torch.int64 if idx_bytes == 8 else torch.int32
    of_weights = (num_rows,) if by_expert else (num_rows, topk)
    return (
        x.new_empty((num_rows, x.shape[1])),
        x.new_empty((0,) if weights is None else of_weights, dtype=torch.float32),
        x.new_empty((num_rows, topk) if topk_idx and not by_expert else (0,), dtype=ids),
        x.new_empty((num_rows, 2) if source else (0,), dtype=torch.int32),
    )


def _combine(
    x: torch.Tensor,
    weights: Optional[torch.Tensor],
    biases: Sequence[torch.Tensor],
    route: int,
    run: int,
    num_tokens: int,
    topk: int,
    num_sms: int,
) -> _Pair:
    sums = _route(route, run).plain_combine(x, weights, biases, None, num_sms or None)
    return sums.x, _none(x, torch.float32) if sums.weights is None else sums.weights


def _combine_shapes(
    x: torch.Tensor,
    weights: Optional[torch.Tensor],
    biases: Sequence[torch.Tensor],
    route: int,
    run: int,
    num_tokens: int,
    topk: int,
    num_sms: int,
) -> _Pair:
    of_weights = (0,) if weights is None else (num_tokens, topk)
    return x.new_empty((num_tokens, x.shape[1])), x.new_empty(of_weights, dtype=torch.float32)


def _keep_dispatch(ctx: Any, inputs: Tuple[Any, ...], output: _Tensors) -> None:
    x, weights, ctx.route, ctx.run, ctx.topk, _, ctx.by_expert = inputs[:7]
    ctx.num_tokens, ctx.has_weights = x.shape[0], weights is not None
    ctx.save_for_backward(output[2])


def _back_dispatch(ctx: Any, rows: torch.Tensor, weights: torch.Tensor, *unused: Any) -> Any:
    given = None
    if ctx.has_weights:
        given = weights.contiguous()
        if not ctx.by_expert:  # as tern.autograd has it
            given = given.masked_fill(ctx.saved_tensors[0] < 0, 0)
    route = (ctx.route, ctx.run, ctx.num_tokens, ctx.topk)
    sums, of_weights = OPERATORS.combine(rows.contiguous(), given, [], *route, _DEFAULT)
    return (sums, of_weights if ctx.has_weights else None) + (None,) * 10


def _keep_combine(ctx: Any, inputs: Tuple[Any, ...], output: _Pair) -> None:
    x, _, biases, ctx.route, ctx.run, _, ctx.topk = inputs[:7]
    ctx.num_rows, ctx.num_biases = x.shape[0], len(biases)


def _back_combine(ctx: Any, sums: torch.Tensor, *unused: Any) -> Any:
    route = (ctx.route, ctx.run, ctx.topk, 8, False, ctx.num_rows, False, False, True, _DEFAULT)
    rows = OPERATORS.dispatch(sums.contiguous(), None, *route)[0]
    return (rows, None, [sums] * ctx.num_biases) + (None,) * 5


def _operator(name: str, function: Any, shapes: Any) -> Any:
    options: Dict[str, Any] = {}
    if hasattr(torch, "Tag") and hasattr(torch.Tag, "cudagraph_unsafe"):
        if "tags" in inspect.signature(torch.library.custom_op).parameters:
            options["tags"] = (torch.Tag.cudagraph_unsafe,)
    operator = torch.library.custom_op(f"tern::{name}", function, mutates_args=(), **options)
    operator.register_fake(shapes)
    return operator


def _collective(name: str, function: Any, shapes: Any, keep: Any, back: Any) -> Any:
    """One that all ranks issue, and that has a backward pass."""
    operator = _operator(name, function, shapes)
    operator.register_autograd(back, setup_context=keep)
    if HAS_EFFECTS:
        operator.register_effect(torch.library.EffectType.ORDERED)
    return operator


def register() -> Operators:
    return Operators(
        _operator("num_rows", _num_rows, _some_rows),
        _collective("dispatch", _dispatch, _dispatch_shapes, _keep_dispatch, _back_dispatch),
        _collective("combine", _combine, _combine_shapes, _keep_combine, _back_combine),
    )


# Made when this module is imported, which is done and not traced: nothing is compiled without them.
OPERATORS: Any = register() if hasattr(torch.library, "custom_op") else None


def dispatch(route: Route, x: Any, weights: Any, given: Dict[str, Any], has_grad: bool) -> Rows:
    if given["cast"] is not None or isinstance(x, (tuple, list)):
        raise Unsupported("what is compiled dispatches one tensor without a cast")
    if has_grad and x.dtype != torch.bfloat16:
        raise Unsupported(f"a dispatch of {x.dtype} has no gradient: one BF16 tensor has")
    by_expert = route.layout == "expert"
    if has_grad and weights is not None and not (by_expert or given["topk_idx"]):
        raise Unsupported("topk_idx is False: the gradient of topk_weights needs it")
    num_rows = given["num_rows"]
    if num_rows is None:
        num_rows = OPERATORS.num_rows(x, route.number, route.run)
    got = OPERATORS.dispatch(
        x,
        weights,
        route.number,
        route.run,
        route.topk,
        route.idx_bytes,
        by_expert,
        num_rows,
        given["topk_idx"],
        given["source"],
        given["zero_padding"],
        given["num_sms"] or _DEFAULT,
    )
    return Rows(
        got[0],
        None,
        got[2] if given["topk_idx"] and not by_expert else None,
        None if weights is None else got[1],
        got[3] if given["source"] else None,
    )


def combine(
    route: Route, x: Any, weights: Any, biases: Sequence[Any], out: Any, num_sms: Optional[int]
) -> Sums:
    if out is not None:
        raise Unsupported("a combine that is compiled makes its output: out must be None")
    if weights is not None and weights.requires_grad:
        raise Unsupported("the sums of weights have no gradient: give combine weights.detach()")
    if len(biases) > 2:
        tensors.refuse(f"{len(biases)} biases: combine adds one or two")
    got = OPERATORS.combine(
        x,
        weights,
        list(biases),
        route.number,
        route.run,
        route.num_tokens,
        route.topk,
        num_sms or _DEFAULT,
    )
    return Sums(got[0], None if weights is None else got[1])
