# SPDX-License-Identifier: Apache-2.0
"""Dispatch and combine as operators (tern/compiled.py), where torch has none: a stand-in of the
part of torch.library that they use, which runs them, checks their fake outputs against the real
ones, and differentiates by what they registered. What a real torch.compile does with them, it does
not show."""

import inspect
import typing
from contextlib import ExitStack, nullcontext
from unittest import mock

import torch

import tern
from tern import compiled, tensors
from world import RankTest, batch

EXPERTS, TOPK, TOKENS, HIDDEN = 8, 2, 16, 64
TAKEN = (torch.Tensor, typing.Optional[torch.Tensor], typing.Sequence[torch.Tensor], int, bool)


class Operator:
    """What custom_op gives: a function of tensors and numbers, to which an autograd function
    belongs."""

    made = {}

    def __init__(self, name, function, mutates_args):
        assert name.startswith("tern::") and mutates_args == ()
        self.function, self.calls = function, 0
        self.parameters = typing.get_type_hints(function)
        returned = self.parameters.pop("return")
        assert returned is int or all(k is torch.Tensor for k in typing.get_args(returned))
        assert all(kind in TAKEN for kind in self.parameters.values()), self.parameters
        assert list(self.parameters) == list(inspect.signature(function).parameters)
        self.made[name] = self

    def register_fake(self, fake):
        assert inspect.signature(fake) == inspect.signature(self.function)
        self.fake = fake

    def register_autograd(self, backward, *, setup_context):
        self.backward, self.setup = backward, setup_context

    def register_effect(self, kind):
        assert hasattr(self, "backward")

    def __call__(self, *args):
        assert len(args) == len(self.parameters)
        self.calls += 1
        if not hasattr(self, "backward"):
            with mock.patch.object(torch.library, "get_ctx", mock.Mock(), create=True):
                self.fake(*args)
            return self.function(*args)
        lists = [list(a) if isinstance(a, list) else None for a in args]
        flat = [t for a in args for t in (a if isinstance(a, list) else [a])]
        operator = self

        class Function(torch.autograd.Function):
            @staticmethod
            def forward(ctx, *given):
                given = iter(given)
                taken = tuple(
                    next(given) if old is None else [next(given) for _ in old] for old in lists
                )
                got = operator.function(*taken)
                operator.setup(ctx, taken, got)
                ctx.mark_non_differentiable(*[t for t in got if not t.is_floating_point()])
                operator.check(taken, got)
                return got

            @staticmethod
            def backward(ctx, *gradients):
                with torch.no_grad():
                    got = operator.backward(ctx, *gradients)
                assert len(got) == len(args)
                return tuple(t for g in got for t in (g if isinstance(g, list) else [g]))

        return Function.apply(*flat)

    def check(self, taken, got):
        """Fake outputs are as the real ones."""
        fake = self.fake(*taken)
        for a, b in zip(fake, got):
            assert (a.shape, a.dtype, a.is_contiguous()) == (b.shape, b.dtype, b.is_contiguous())
        assert len(fake) == len(got)


class Compiled(RankTest):
    options = {"heap_bytes": 2**22}

    def setUp(self):
        super().setUp()
        self.ep = tern.EP(
            self.comm, num_experts=EXPERTS, max_topk=TOPK, max_tokens=TOKENS, hidden=HIDDEN
        )
        self.x, self.ids, self.weights = batch(
            self.rank, TOKENS - self.rank, HIDDEN, EXPERTS, TOPK
        )
        self.bias = self.x * 2

    def tearDown(self):
        self.close(self.ep)
        super().tearDown()

    def compiling(self):
        """As if torch were 2.4 and compiling."""
        stack = ExitStack()
        stack.enter_context(
            mock.patch.multiple(
                torch,
                library=mock.Mock(custom_op=Operator, wraps=torch.library),
                compiler=mock.Mock(is_compiling=lambda: True),
                create=True,
            )
        )
        stack.enter_context(mock.patch.object(tensors, "_has_operators", None))
        stack.enter_context(mock.patch.object(compiled, "OPERATORS", compiled.register()))
        return stack

    def step(self, route, **given):
        """A forward and a backward pass: all that came of them."""
        x, bias = self.x.clone().requires_grad_(), self.bias.clone().requires_grad_()
        weights = self.weights.clone().requires_grad_()
        rows = route.dispatch(x, weights, source=True, **given)
        scale = rows.topk_weights if rows.topk_weights.dim() == 1 else rows.topk_weights.sum(1)
        y = rows.x * scale[:, None].bfloat16()
        sums = route.combine(y, rows.topk_weights.detach(), bias=bias)
        (sums.x.float() * torch.arange(HIDDEN)).sum().backward()
        made = (*rows, *sums, x.grad, bias.grad, weights.grad)
        return [None if t is None else t.detach().clone() for t in made]

    def same_as_uncompiled(self, **given):
        layout = given.pop("layout", "rank")
        plain_route = self.ep.route(self.ids, layout=layout)
        plain = self.step(plain_route, **given)
        route = self.ep.route(self.ids, layout=layout)
        with self.compiling():
            got = self.step(route, **given)
            made = Operator.made
        self.assertEqual((made["tern::dispatch"].calls, made["tern::combine"].calls), (2, 2))
        for i, (have, want) in enumerate(zip(got, plain)):
            self.assertEqual(have is None, want is None, i)
            if want is not None:
                self.assertTrue(torch.equal(have, want), i)

    def test_by_rank(self):
        self.same_as_uncompiled()

    def test_by_rank_in_static_shapes(self):
        self.same_as_uncompiled(num_rows=self.size * TOKENS)

    def test_by_expert(self):
        self.same_as_uncompiled(layout="expert")

    def test_without_weights_and_ids(self):
        route = self.ep.route(self.ids)
        plain = route.dispatch(self.x, topk_idx=False)
        with self.compiling():
            rows = route.dispatch(self.x, topk_idx=False)
            self.assertEqual(rows[1:], (None,) * 4)
            self.assertTrue(torch.equal(rows.x, plain.x))
            self.assertIsNone(route.combine(rows).weights)
            for call in (
                lambda: route.dispatch(self.x, cast="fp8"),
                lambda: route.dispatch((self.x, self.x)),
                lambda: route.combine(rows, out=self.x),
            ):
                with self.assertRaises(tern.Unsupported):
                    call()

    def test_route_that_was_updated_or_is_gone(self):
        route = self.ep.route(self.ids)
        x = self.x.clone().requires_grad_()
        with self.compiling():
            rows = route.dispatch(x)
            route.update(self.ids)
            with self.assertRaisesRegex(tern.BadState, "updated 1 times"):
                rows.x.sum().backward()
            rows = route.dispatch(x)
            del route
            with self.assertRaisesRegex(tern.BadState, "the route is gone"):
                rows.x.sum().backward()

    def test_gradient_of_other_types(self):
        """Refused in the forward pass, as by what is not compiled."""
        route = self.ep.route(self.ids)
        x, weights = self.x.half(), self.weights.clone().requires_grad_()
        with self.compiling():
            self.assertEqual(route.dispatch(x).x.dtype, torch.float16)
            for given in ((x.clone().requires_grad_(),), (x, weights)):
                with self.assertRaisesRegex(tern.Unsupported, "float16 has no gradient"):
                    route.dispatch(*given)

    def test_weights_without_ids(self):
        """Refused in the forward pass wherever a gradient is asked for, as by what is not
        compiled."""
        route = self.ep.route(self.ids)
        x, weights = self.x.clone().requires_grad_(), self.weights.clone().requires_grad_()
        given = ((x, self.weights), (self.x, weights), (x, weights))
        for compiling in (nullcontext, self.compiling):
            with compiling():
                for case in given:
                    with self.assertRaisesRegex(tern.Unsupported, "topk_idx is False"):
                        route.dispatch(*case, topk_idx=False)
                route.dispatch(x, topk_idx=False).x.sum().backward()
                with torch.no_grad():
                    self.assertIsNone(route.dispatch(x, weights, topk_idx=False).topk_idx)
        by_expert = self.ep.route(self.ids, layout="expert")
        with self.compiling():
            by_expert.dispatch(x, self.weights, topk_idx=False).x.sum().backward()

    def test_no_cuda_graph_of_what_is_compiled(self):
        route = self.ep.route(self.ids)
        with mock.patch.object(compiled.tensors, "capturing", return_value=True):
            rows = route.dispatch(self.x)
            with self.compiling():
                for call in (
                    lambda: route.dispatch(self.x),
                    lambda: route.dispatch(self.x, num_rows=4),
                    lambda: route.combine(rows),
                ):
                    with self.assertRaisesRegex(tern.Unsupported, "is being captured"):
                        call()

    def test_this_torch(self):
        """Without operators, or while nothing is compiled, calls are plain."""
        with mock.patch.object(compiled, "dispatch", side_effect=AssertionError):
            rows = self.ep.route(self.ids).dispatch(self.x)
        self.assertTrue(rows.x.is_contiguous())
