# SPDX-License-Identifier: Apache-2.0
"""Gradients: the backward pass of dispatch is combine, that of combine is dispatch, along the same
route.

Both are collective: every rank runs the same passes in the same order, as it does when all train
one model.

A graph holds a route as it holds the tensors that it saved: until its backward pass is over, or,
with retain_graph, until the graph is gone. An attribute of a node would live as long as the
outputs, and a loop that still has the last step's loss would run out of routes.
"""

import weakref
from typing import Any, Dict, Optional, Sequence, Tuple

import torch
from torch.autograd.function import once_differentiable

from . import tensors
from .errors import BadState, Unsupported
from .route import Route, Rows, Sums


class _Hold:
    """A route as it is in a forward pass."""

    def __init__(self, route: Route) -> None:
        self.route, self.run = route, route.run


def _save(ctx: Any, route: Route, *saved: torch.Tensor) -> None:
    """The route rides on a saved tensor without elements; ctx itself has a weak reference."""
    carrier = torch.empty(0)
    carrier.hold = _Hold(route)  # type: ignore[attr-defined]
    ctx.hold = weakref.ref(carrier.hold)  # type: ignore[attr-defined]
    ctx.save_for_backward(carrier, *saved)


def _keep(output: torch.Tensor, route: Route) -> None:
    """After a forward pass: hooks that replace saved tensors, as checkpoints have, leave no
    carrier. The node holds the route then, as long as it lives."""
    node: Any = output.grad_fn
    if node.hold() is None:
        kept = _Hold(route)
        node.hold = lambda: kept


def _restore(ctx: Any) -> Tuple[Route, Sequence[torch.Tensor]]:
    """The route, and what was saved with it."""
    saved = ctx.saved_tensors[1:]  # which says so if they are gone
    hold = ctx.hold()
    if hold is None:
        raise BadState("a hook of saved tensors let go of the route that the gradients take")
    if hold.run != hold.route.run:
        raise BadState(
            f"the route was updated {hold.route.run - hold.run} times since the forward pass: "
            "its gradients go along the route that it took"
        )
    return hold.route, saved


class _Dispatch(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        route: Route,
        given: Dict[str, Any],
        x: torch.Tensor,  # type: ignore[override]
        weights: Optional[torch.Tensor],
    ) -> Tuple[Any, ...]:
        rows = route.plain_dispatch(x, weights, **given)
        fixed = [tensor for tensor in (rows.topk_idx, rows.source) if tensor is not None]
        ctx.mark_non_differentiable(*fixed)
        ctx.has_weights = weights is not None
        _save(ctx, route, *([rows.topk_idx] if rows.topk_idx is not None else []))
        return rows.x, rows.topk_weights, rows.topk_idx, rows.source

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,
        rows: torch.Tensor,
        weights: Optional[torch.Tensor],  # type: ignore[override]
        *unused: Any,
    ) -> Tuple[Any, ...]:
        route, saved = _restore(ctx)
        if not ctx.has_weights:
            weights = None
        elif saved:
            # A weight that is not local was 0 here, whatever the token's was: nothing of its
            # gradient is the token's.
            weights = weights.masked_fill(saved[0] < 0, 0)  # type: ignore[union-attr]
        sums = route.plain_combine(
            rows.contiguous(), None if weights is None else weights.contiguous(), (), None, None
        )
        return None, None, sums.x, sums.weights


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        route: Route,
        out: Optional[torch.Tensor],
        num_sms: Optional[int],  # type: ignore[override]
        weights: Optional[torch.Tensor],
        x: torch.Tensor,
        *biases: torch.Tensor,
    ) -> Tuple[Any, ...]:
        sums = route.plain_combine(x, weights, biases, out, num_sms)
        if sums.weights is not None:
            ctx.mark_non_differentiable(sums.weights)
        _save(ctx, route)
        ctx.num_rows = int(x.shape[0])
        ctx.num_biases = len(biases)
        return sums.x, sums.weights

    @staticmethod
    @once_differentiable
    # type: ignore[override]
    def backward(ctx: Any, sums: torch.Tensor, *unused: Any) -> Tuple[Any, ...]:
        route, _ = _restore(ctx)
        rows = route.plain_dispatch(
            sums.contiguous(),
            None,
            cast=None,
            num_rows=ctx.num_rows,
            topk_idx=False,
            source=False,
            zero_padding=True,
            num_sms=None,
        )
        return (None, None, None, None, rows.x) + (sums,) * ctx.num_biases


def dispatch(route: Route, x: Any, weights: Any, given: Dict[str, Any]) -> Rows:
    if (
        given["cast"] is not None
        or isinstance(x, (tuple, list))
        or tensors.type_name(x) != "bfloat16"
    ):
        raise Unsupported(
            f"a dispatch with cast {given['cast']!r} of a {type(x).__name__} has no gradient: "
            "one BF16 tensor without a cast has"
        )
    if weights is not None and route.layout == "rank" and not given["topk_idx"]:
        raise Unsupported("topk_idx is False: the gradient of topk_weights needs it")
    got = _Dispatch.apply(route, given, x, weights)
    _keep(got[0], route)
    return Rows(got[0], None, got[2], got[1], got[3])


def combine(
    route: Route, x: Any, weights: Any, biases: Sequence[Any], out: Any, num_sms: Optional[int]
) -> Sums:
    if weights is not None and weights.requires_grad:
        raise Unsupported("the sums of weights have no gradient: give combine weights.detach()")
    if out is not None:
        raise Unsupported("a combine with gradients makes its output: out must be None")
    got = _Combine.apply(route, out, num_sms, weights, x, *biases)
    _keep(got[0], route)
    return Sums(*got)
