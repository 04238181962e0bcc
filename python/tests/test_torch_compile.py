# SPDX-License-Identifier: Apache-2.0
"""Dispatch and combine under torch.compile itself, forward and backward, where torch has it and
operators (2.4)."""

import gc
import shutil
import unittest
from unittest import mock

import torch

import tern
from tern import compiled
from tern.route import Route
from world import RankTest, batch

EXPERTS, TOPK, TOKENS, HIDDEN = 8, 2, 24, 64
HAS_OPERATORS = compiled.OPERATORS is not None
HAS_EFFECTS = compiled.HAS_EFFECTS

EXACT = unittest.skipUnless(HAS_EFFECTS, "old torch, which guards on sizes that it does not know")


def layer(route, x, weights, bias, num_rows):
    rows = route.dispatch(x, weights, num_rows=num_rows)
    scale = rows.topk_weights if rows.topk_weights.dim() == 1 else rows.topk_weights.sum(1)
    sums = route.combine(torch.relu(rows.x) * scale[:, None].bfloat16(), bias=bias)
    return sums.x


class Layer(torch.nn.Module):
    """One that holds its route."""

    def forward(self, *given):
        return layer(self.route, *given)


@unittest.skipUnless(HAS_OPERATORS, "torch has no operators of one's own")
class Compile(RankTest):
    options = {"heap_bytes": 2**22}

    def setUp(self):
        super().setUp()
        self.ep = tern.EP(
            self.comm, num_experts=EXPERTS, max_topk=TOPK, max_tokens=TOKENS, hidden=HIDDEN
        )
        torch._dynamo.reset()
        self.graphs = 0

    def tearDown(self):
        self.close(self.ep)
        super().tearDown()

    def compile(self, function, backend="aot_eager"):
        """With one graph, counted."""
        behind = torch._dynamo.lookup_backend(backend)

        def count(module, inputs):
            self.graphs += 1
            return behind(module, inputs)

        return torch.compile(function, fullgraph=True, backend=count)

    def step(self, function, route, given, num_rows):
        """What a forward and a backward pass bring."""
        x, weights, bias = (t.clone().requires_grad_() for t in given)
        sums = function(route, x, weights, bias, num_rows)
        (sums.float() * torch.arange(HIDDEN)).sum().backward()
        return [t.detach().clone() for t in (sums, x.grad, weights.grad, bias.grad)]

    def same_as_eager(self, layout, num_rows, backend="aot_eager", near=0.0):
        function = self.compile(layer, backend)
        for i in range(4):  # other tokens and another route each time
            x, ids, weights = batch(self.rank, TOKENS - 3 * i - self.rank, HIDDEN, EXPERTS, TOPK, i)
            given, route = (x, weights, x * 2), self.ep.route(ids, layout=layout)
            for have, want in zip(
                self.step(function, route, given, num_rows),
                self.step(layer, route, given, num_rows),
            ):
                self.assertEqual((have.shape, have.dtype), (want.shape, want.dtype))
                most = float((have - want).abs().max())
                self.assertLessEqual(most, near * float(want.abs().max()), (i, layout))
            route.close()
        if HAS_EFFECTS:  # an older torch may compile for each route
            self.assertLessEqual(self.graphs, 2)  # of the first sizes, and of any

    @EXACT
    def test_by_rank(self):
        self.same_as_eager("rank", None)

    def test_by_rank_in_static_shapes(self):
        self.same_as_eager("rank", self.size * TOKENS)

    @EXACT
    def test_by_expert(self):
        self.same_as_eager("expert", None)

    def test_by_expert_in_static_shapes(self):
        self.same_as_eager("expert", self.size * TOKENS * TOPK)

    @EXACT
    def test_route_of_a_module(self):
        """A graph for each, as torch takes numbers of modules for constants, unless it is told not
        to."""
        x, ids, weights = batch(self.rank, TOKENS, HIDDEN, EXPERTS, TOPK)
        given = (x, weights, x * 2, self.size * TOKENS)
        for is_general in (False, True):
            torch._dynamo.reset()
            self.graphs = 0
            module = Layer()
            function = self.compile(module)
            with torch._dynamo.config.patch(allow_unspec_int_on_nn_module=is_general):
                for _ in range(4):
                    module.route = self.ep.route(ids)
                    self.assertTrue(torch.equal(function(*given), layer(module.route, *given)))
                    module.route.close()
            self.assertEqual(self.graphs, 2 if is_general else 4)

    @unittest.skipUnless(shutil.which("c++") or shutil.which("g++"), "there is no C++ compiler")
    def test_inductor(self):
        for num_rows in (None, self.size * TOKENS) if HAS_EFFECTS else (self.size * TOKENS,):
            torch._dynamo.reset()
            self.graphs = 0
            self.same_as_eager("rank", num_rows, "inductor", near=0.02)

    def test_operators_are_what_they_claim(self):
        x, ids, weights = batch(self.rank, TOKENS, HIDDEN, EXPERTS, TOPK)
        x, weights = x.requires_grad_(), weights.requires_grad_()
        route = self.ep.route(ids)
        names = (route.number, route.run)
        rows = self.size * TOKENS
        fixed = (TOPK, 8, False, rows, True, True, True, 0)
        torch.library.opcheck(compiled.OPERATORS.num_rows, (x.detach(), *names))
        tests = ("test_schema", "test_autograd_registration", "test_faketensor")
        torch.library.opcheck(
            compiled.OPERATORS.dispatch, (x, weights, *names, *fixed), test_utils=tests
        )
        y = torch.ones(rows, HIDDEN).bfloat16().requires_grad_()
        bias = torch.ones(TOKENS, HIDDEN).bfloat16().requires_grad_()
        torch.library.opcheck(
            compiled.OPERATORS.combine,
            (y, None, [bias], *names, TOKENS, TOPK, 0),
            test_utils=tests,
        )

    @unittest.skipUnless(hasattr(getattr(torch, "Tag", 0), "cudagraph_unsafe"), "no such tag")
    def test_operators_stay_out_of_cuda_graphs(self):
        for name in compiled.Operators._fields:
            tags = getattr(torch.ops.tern, name).default.tags
            self.assertIn(torch.Tag.cudagraph_unsafe, tags, name)

    @unittest.skipUnless(HAS_EFFECTS, "operators have no effects in this torch")
    def test_nothing_is_left_out_or_goes_first(self):
        """Of operations that nobody looks at, along two routes."""
        _, ids, _ = batch(self.rank, TOKENS, HIDDEN, EXPERTS, TOPK)
        x = torch.ones(TOKENS, HIDDEN).bfloat16()
        routes = [self.ep.route(ids), self.ep.route(ids.flip(0).contiguous())]

        def loses_all(first, second, x):
            second.dispatch(x)
            first.dispatch(x, num_rows=4)
            first.dispatch(x, num_rows=4)
            return x + 1

        plain, seen = Route.plain_dispatch, []

        def watch(route, *args, **options):
            seen.append(routes.index(route))
            return plain(route, *args, **options)

        with mock.patch.object(Route, "plain_dispatch", watch):
            self.compile(loses_all)(*routes, x)
        self.assertEqual(seen, [1, 0, 0])

    def test_what_is_gone_or_updated(self):
        x, ids, weights = batch(self.rank, TOKENS, HIDDEN, EXPERTS, TOPK)
        x, function = x.requires_grad_(), self.compile(layer)
        route = self.ep.route(ids)
        sums = function(route, x, weights, None, self.size * TOKENS)
        route.update(ids)
        with self.assertRaisesRegex(tern.BadState, "updated 1 times"):
            sums.sum().backward()
        sums = function(route, x, weights, None, self.size * TOKENS)
        del route
        gc.collect()
        with self.assertRaisesRegex(tern.BadState, "the route is gone"):
            sums.sum().backward()
