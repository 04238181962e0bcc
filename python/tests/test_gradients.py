# SPDX-License-Identifier: Apache-2.0
"""Gradients of a layer with dispatch and combine, against the same layer computed densely by one
process: experts are matrices, which get gradients too. And steps that train it."""

from contextlib import nullcontext

import torch

import tern
from world import RankTest, batch, generator

EXPERTS, TOPK, TOKENS, HIDDEN = 8, 2, 24, 64


def experts():
    return torch.randn(EXPERTS, HIDDEN, HIDDEN, generator=generator(3)) / HIDDEN**0.5


def dense(x, ids, weights, matrices):
    """The layer, token by token, in FP32 but for what travels as BF16."""
    home = torch.zeros(x.shape)
    for k in range(TOPK):
        for e in range(EXPERTS):
            chosen = ids[:, k] == e
            y = (x[chosen].float() @ matrices[e]) * weights[chosen, k, None]
            home = home.index_add(0, chosen.nonzero()[:, 0], y)
    return home


class Gradients(RankTest):
    options = {"heap_bytes": 2**24}

    def setUp(self):
        super().setUp()
        self.ep = tern.EP(
            self.comm, num_experts=EXPERTS, max_topk=TOPK, max_tokens=TOKENS, hidden=HIDDEN
        )
        self.share = EXPERTS // self.size
        self.mine = slice(self.rank * self.share, (self.rank + 1) * self.share)
        self.batches = [batch(r, TOKENS, HIDDEN, EXPERTS, TOPK) for r in range(self.size)]

    def tearDown(self):
        self.close(self.ep)
        super().tearDown()

    def near(self, have, wanted, what):
        error = (have.float() - wanted.float()).norm() / wanted.float().norm()
        self.assertLess(float(error), 0.01, what)  # BF16 has 8 bits

    def layer(self, x, ids, weights, matrices, layout, bias=None, num_rows=None):
        """matrices: those of this rank."""
        route = self.ep.route(ids, layout=layout, expert_alignment=4 if layout == "expert" else 1)
        rows = route.dispatch(x, weights, num_rows=num_rows)
        if layout == "expert":
            begin = route.counts.expert_offsets
            parts = [
                rows.x[begin[e] : begin[e + 1]].float() @ matrices[e] for e in range(self.share)
            ]
            y = torch.cat(parts) * rows.topk_weights[:, None]
        else:
            y = sum(
                (rows.x.float() @ matrices[e])
                * ((rows.topk_idx == e) * rows.topk_weights).sum(1, keepdim=True)
                for e in range(self.share)
            )
        return route.combine(y.bfloat16(), bias=bias).x

    def check(self, layout, num_rows=None):
        x, ids, weights = self.batches[self.rank]
        x, weights = x.clone().requires_grad_(), weights.clone().requires_grad_()
        matrices = experts()[self.mine].clone().requires_grad_()
        bias = torch.ones(TOKENS, HIDDEN).bfloat16().requires_grad_()
        pull = torch.cos(
            torch.arange(TOKENS * HIDDEN).reshape(TOKENS, HIDDEN) + self.rank
        ).bfloat16()
        home = self.layer(x, ids, weights, matrices, layout, bias, num_rows)
        home.backward(pull)
        full = experts().requires_grad_()
        for r in range(
            self.size
        ):  # every rank's tokens have a part in the gradients of this rank's experts
            dense_x, _, dense_weights = (tensor.clone() for tensor in self.batches[r])
            dense_x, dense_weights = (
                dense_x.float().requires_grad_(),
                dense_weights.requires_grad_(),
            )
            wanted = dense(dense_x, self.batches[r][1], dense_weights, full)
            wanted.backward(
                torch.cos(torch.arange(TOKENS * HIDDEN).reshape(TOKENS, HIDDEN) + r)
                .bfloat16()
                .float()
            )
            if r == self.rank:
                self.near(home, wanted + 1, "home")
                self.near(x.grad, dense_x.grad, "x")
                self.near(weights.grad, dense_weights.grad, "weights")
        self.near(matrices.grad, full.grad[self.mine], "matrices")
        self.assertTrue(torch.equal(bias.grad, pull))

    def test_by_rank(self):
        self.check("rank")

    def test_by_rank_in_static_shapes(self):
        self.check("rank", self.size * TOKENS)

    def test_by_expert(self):
        self.check("expert")

    def test_weights_that_are_not_local_get_nothing(self):
        x, ids, weights = self.batches[self.rank]
        weights = weights.clone().requires_grad_()
        rows = self.ep.route(ids).dispatch(x, weights)
        rows.topk_weights.sum().backward()  # also of columns that are 0 here, being another rank's
        self.assertTrue(torch.equal(weights.grad, (ids >= 0).float()))

    def test_steps_that_train(self):
        x, ids, weights = self.batches[self.rank]
        matrices = experts()[self.mine].clone().requires_grad_()
        wanted = dense(x.float(), ids, weights, torch.eye(HIDDEN).expand(EXPERTS, HIDDEN, HIDDEN))
        losses = []
        optimizer = torch.optim.SGD([matrices], lr=2.0)
        for _ in range(8):
            home = self.layer(x.clone().requires_grad_(), ids, weights, matrices, "expert")
            loss = (home.float() - wanted).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        self.assertLess(losses[-1], 0.5 * losses[0])

    def test_routes_end_with_the_backward_pass(self):
        """Three layers a step, four routes: the loss of the last step is still there when the next
        one begins."""
        x, ids, weights = self.batches[self.rank]
        matrices = experts()[self.mine]
        for _ in range(3):
            home = x.clone().requires_grad_()
            for _ in range(3):
                home = self.layer(home, ids, weights, matrices, "rank")
            loss = home.float().pow(2).mean()
            loss.backward()
        self.assertGreater(loss.item(), 0)

    def test_graph_that_is_retained_keeps_its_route(self):
        x, ids, _ = self.batches[self.rank]
        asks = x.clone().requires_grad_()
        home = self.ep.route(ids).dispatch(asks).x.float().sum()
        home.backward(retain_graph=True)
        first = asks.grad.clone()
        home.backward()
        self.assertTrue(torch.equal(asks.grad, 2 * first))
        with self.assertRaisesRegex(RuntimeError, "second time"):
            home.backward()

    def test_saved_tensors_that_hooks_replace(self):
        x, ids, weights = self.batches[self.rank]
        matrices = experts()[self.mine]
        grads = []
        for hooks in (None, torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone)):
            asks = x.clone().requires_grad_()
            with hooks or nullcontext():
                home = self.layer(asks, ids, weights, matrices, "rank")
            home.float().sum().backward()
            grads.append(asks.grad)
        self.assertTrue(torch.equal(*grads))

    def test_update_before_the_backward_pass_is_refused(self):
        x, ids, _ = self.batches[self.rank]
        route = self.ep.route(ids)
        asks = x.clone().requires_grad_()
        rows = route.dispatch(asks)
        home = route.combine(rows.x.detach().requires_grad_())
        route.update(ids.flip(0))
        for output in (rows.x, home.x):
            with self.assertRaisesRegex(tern.BadState, "updated 1 times since the forward pass"):
                output.float().sum().backward()
        again = route.dispatch(asks)
        again.x.float().sum().backward()
        ranks = [len({int(e) // self.share for e in row if e >= 0}) for row in ids.flip(0)]
        self.assertTrue(bool((asks.grad == torch.tensor(ranks)[:, None]).all()))

    def test_outputs_that_a_graph_has_saved(self):
        x, ids, _ = self.batches[self.rank]
        route = self.ep.route(ids)
        out = torch.full((len(x), HIDDEN), -0.0).bfloat16()
        factor = torch.ones(1).bfloat16().requires_grad_()
        product = (factor * out).sum()
        bits = route.combine(route.dispatch(x)).x.view(torch.int16)
        route.combine(route.dispatch(x), out=out)
        self.assertTrue(torch.equal(out.view(torch.int16), bits))
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            product.backward()

    def test_what_has_no_gradient_says_so(self):
        x, ids, weights = self.batches[self.rank]
        route = self.ep.route(ids)
        asks = x.clone().requires_grad_()
        with self.assertRaisesRegex(tern.Unsupported, "cast 'fp8'"):
            route.dispatch(asks, cast="fp8")
        for several in ((asks, x), [x, asks]):
            sentence = f"a {type(several).__name__} has no gradient"
            with self.assertRaisesRegex(tern.Unsupported, sentence):
                route.dispatch(several, weights)
        with self.assertRaisesRegex(tern.Unsupported, "topk_idx is False"):
            route.dispatch(asks, weights, topk_idx=False)
        with self.assertRaisesRegex(tern.Unsupported, "out must be None"):
            route.combine(asks, out=x)
        with self.assertRaisesRegex(tern.Unsupported, "detach"):
            route.combine(x, weights.clone().requires_grad_())
        with self.assertRaisesRegex(tern.Unsupported, "x requires a gradient"):
            self.ep.ll_dispatch(asks, ids)
        out = torch.zeros(len(x), HIDDEN).bfloat16().requires_grad_()
        with self.assertRaisesRegex(tern.Unsupported, "out requires a gradient"):
            route.combine(route.dispatch(x), out=out)
        with torch.no_grad():
            self.assertFalse(route.dispatch(asks).x.requires_grad)

    def test_low_latency_has_no_gradient(self):
        """Also where a call of the same shape went before."""
        x, ids, weights = self.batches[self.rank]
        asks = weights.clone().requires_grad_()
        by_rank = {"layout": "rank", "weights": "dispatch"}
        sentence = "topk_weights requires a gradient"
        with tern.EP(
            self.comm, num_experts=EXPERTS, max_topk=TOPK, ll_tokens=TOKENS, ll_hidden=HIDDEN
        ) as ep:
            for _ in range(2):
                with self.assertRaisesRegex(tern.Unsupported, sentence):
                    ep.ll_dispatch(x, ids, asks, **by_rank)
                with torch.no_grad():
                    ep.ll_dispatch(x, ids, asks, **by_rank)
            for hook in (False, True):
                got = ep.ll_dispatch(x, ids)
                with self.assertRaisesRegex(tern.Unsupported, sentence):
                    ep.ll_combine(got, got.x, asks, hook=hook)
                with torch.no_grad():
                    sums, _ = ep.ll_combine(got, got.x, asks)
                self.assertFalse(sums.requires_grad)
            self.comm.barrier()
