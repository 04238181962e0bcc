# SPDX-License-Identifier: Apache-2.0
"""Routes behind handles.

A handle of DeepEP is a few tensors, of which a program may keep any number; an EP object has a few
routes. So a handle keeps the ids that it was made of, and the routes that were used last are kept
open: one that is needed again is made anew, without a word to the host. Every rank makes the same
calls in the same order, hence all choose alike.

EP objects grow with what is asked of them. That is collective, and so is everything here; what it
is decided by is equal on all ranks.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Dict, List, Optional

import torch

import tern
from tern.tensors import capturing

MAX_ROUTES = 16
_LEAST_TOPK = 16
_MOST_TOKENS = 2**24  # of an EP object
_MOST_CHOICES = 2**31 - 1  # likewise, ranks * tokens * topk
_serials = count()


@dataclass
class Plan:
    """What a handle stands for."""

    num_experts: int
    ids: torch.Tensor  # [tokens, topk], not the caller's
    num_rows: int  # that this rank receives, or has room for
    most_rows: int  # the same on all ranks: the most that any receives
    most_tokens: int  # likewise: the most that any has, or more
    is_guess: bool = False  # most_tokens may be far more, and may be cut to what an EP object takes
    layout: str = "rank"
    alignment: int = 1
    serial: int = field(default_factory=lambda: next(_serials))
    captured: Any = None  # the route, if the plan was made in a CUDA graph


def _up(value: int) -> int:
    """The next power of two."""
    return 1 << max(0, value - 1).bit_length()


class _Shape:
    """The EP object for a number of experts."""

    def __init__(self) -> None:
        self.ep: Optional[tern.EP] = None
        self.sizes = dict(tokens=0, topk=0, row_bytes=0, staging=0)
        self.routes: "OrderedDict[int, tern.Route]" = OrderedDict()
        self.captured: List[tern.Route] = []  # in graphs, which need them open


class Routes:
    def __init__(self, comm: tern.Communicator, staging_bytes: int) -> None:
        self.comm, self.staging_bytes = comm, staging_bytes
        self._shapes: Dict[int, _Shape] = {}
        self._left: List[_Shape] = []  # with routes in graphs, replaced by larger ones
        self._bad_ids: List[tern.InvalidArgument] = []  # of what was replaced

    def reserve(self, plan: Plan, row_bytes: int) -> None:
        """COLLECTIVE: room for the rows of a plan, of so many bytes without ids and weights."""
        topk = int(plan.ids.shape[1])
        shape = self._shapes.setdefault(plan.num_experts, _Shape())
        staging = plan.most_rows * (row_bytes + 12 * topk + 8) + 2**13
        tokens = plan.most_tokens
        if plan.is_guess:
            tokens = min(tokens, self._most_tokens(max(topk, shape.sizes["topk"])))
        asked = dict(tokens=tokens, topk=topk, row_bytes=row_bytes, staging=staging)
        if shape.ep is None or any(asked[name] > size for name, size in shape.sizes.items()):
            self._open(plan.num_experts, shape, asked)

    def _open(self, num_experts: int, shape: _Shape, asked: Dict[str, int]) -> None:
        if capturing(self.comm):
            raise tern.BadState(
                f"a graph is being captured, and the buffers are too small for {asked}: "
                "run the same shapes once before"
            )
        least = dict(tokens=4096, topk=_LEAST_TOPK, row_bytes=2**14, staging=self.staging_bytes)
        sizes = {
            name: max(size, least[name], _up(asked[name])) for name, size in shape.sizes.items()
        }
        most = self._most_tokens(sizes["topk"])
        sizes["tokens"] = max(asked["tokens"], min(sizes["tokens"], most))
        if shape.ep is not None:
            shape.ep.wait()
            self._bad_ids += shape.ep.bad_ids
            self.comm.barrier()
            shape.routes.clear()
            if shape.captured:
                left = _Shape()
                left.ep, left.captured, shape.captured = shape.ep, shape.captured, []
                self._left.append(left)
            else:
                shape.ep.close()
            shape.ep = None  # if opening fails, the next call tries again
        shape.ep = tern.EP(
            self.comm,
            num_experts=num_experts,
            max_topk=min(sizes["topk"], 64),
            max_tokens=sizes["tokens"],
            max_row_bytes=sizes["row_bytes"],
            max_routes=MAX_ROUTES,
            staging_bytes=sizes["staging"],
        )
        shape.sizes = sizes

    def _most_tokens(self, topk: int) -> int:
        """That an EP object can have, with room for so many ids a token, as _open makes it."""
        room = min(64, max(_LEAST_TOPK, _up(topk)))
        return min(_MOST_TOKENS, _MOST_CHOICES // (self.comm.size * room))

    def route(self, plan: Plan) -> tern.Route:
        """COLLECTIVE: the plan's route, after reserve()."""
        if plan.captured is not None:
            return plan.captured
        shape = self._shapes[plan.num_experts]
        assert shape.ep is not None
        route = shape.routes.pop(plan.serial, None)
        if route is None:
            route = self._make(shape, plan)
        shape.routes[plan.serial] = route
        if capturing(self.comm):  # a replay uses it again, whatever comes between
            plan.captured = shape.routes.pop(plan.serial)
            shape.captured.append(plan.captured)
        return route

    def _make(self, shape: _Shape, plan: Plan) -> tern.Route:
        assert shape.ep is not None
        if len(shape.routes) + len(shape.captured) >= MAX_ROUTES:
            if not shape.routes:
                raise tern.NoSpace(f"graphs hold all {MAX_ROUTES} routes of the Buffer")
            shape.routes.popitem(last=False)[1].close()
        return shape.ep.route(plan.ids, layout=plan.layout, expert_alignment=plan.alignment)

    def wait(self) -> List[tern.InvalidArgument]:
        """Until all is done. What it brings are ids out of range that nobody was told of, to be
        raised when nothing collective is left to do."""
        bad_ids = list(self._bad_ids)
        for shape in self._shapes.values():
            if shape.ep is not None:
                shape.ep.wait()
                bad_ids += shape.ep.bad_ids
        return bad_ids

    def close(self) -> None:
        """Local, behind a barrier."""
        for shape in [*self._left, *self._shapes.values()]:
            if shape.ep is not None:
                shape.ep.close()
        self._shapes.clear()
        self._left.clear()

