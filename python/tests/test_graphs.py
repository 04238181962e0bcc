# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs from Python: operations are captured once and replayed with other tokens, ids and
weights, and bring the bits of plain calls, which other tests compare with the reference."""

import unittest

import torch
import torch.distributed as dist

import deep_ep
import tern
from world import DEVICE, RankTest, batch

EXPERTS, TOPK, TOKENS, HIDDEN, REPLAYS = 8, 3, 16, 512, 24


def here(num, rows):
    """Rows that count; what lies behind them is whatever it was."""
    kept = torch.arange(rows.shape[-2], device=rows.device) < num.unsqueeze(-1)
    return torch.where(kept.unsqueeze(-1), rows.float(), torch.zeros_like(rows, dtype=torch.float))


class Replayed(RankTest):
    options = {"heap_bytes": 2**24}

    def setUp(self):
        super().setUp()
        shape = (TOKENS, HIDDEN, EXPERTS, TOPK)
        self.given = [batch(self.rank, *shape, seed=50 + k) for k in range(REPLAYS)]
        self.x, self.ids, self.weights = (t.clone() for t in self.given[0])
        self.share = EXPERTS // self.size
        self.factors = 1 + torch.arange(self.rank * self.share, (self.rank + 1) * self.share) / 8

    def become(self, given):
        for mine, other in zip((self.x, self.ids, self.weights), given):
            mine.copy_(other)

    def check(self, step, then=None):
        """step() reads x, ids and weights, and gives tensors that are all of them defined. then():
        what comes between the capture and the replays."""
        wanted = []
        for given in self.given:
            self.become(given)
            wanted.append([t.clone() for t in step()])
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        self.comm.barrier()
        with torch.cuda.graph(graph):
            made = step()
        if then:
            then()
        for k, given in enumerate(self.given):
            self.become(given)
            graph.replay()
            for name, (have, want) in enumerate(zip(made, wanted[k])):
                self.assertTrue(torch.equal(have, want), f"output {name} of replay {k}")
        self.assertFalse(torch.equal(wanted[0][0], wanted[1][0]))  # they are not all the same
        torch.cuda.synchronize()
        self.comm.barrier()
        return graph


@unittest.skipUnless(DEVICE == "cuda", "graphs are of GPUs: TERN_TEST_DEVICE=cuda")
class Graphs(Replayed):
    def test_low_latency(self):
        ep = tern.EP(
            self.comm, num_experts=EXPERTS, max_topk=TOPK, ll_tokens=TOKENS, ll_hidden=HIDDEN
        )
        for options in ({}, {"hook": True}, {"lane": 1}):
            with self.subTest(**options):

                def step(options=options):
                    got = ep.ll_dispatch(self.x, self.ids, **options)
                    if got.hook:
                        got.hook()
                    y = (got.x * self.factors[:, None, None]).bfloat16()
                    again = {"hook": True} if got.hook else {}
                    sums, receive = ep.ll_combine(got, y, self.weights, **again)
                    if receive:
                        receive()
                    return sums, got.counts, got.ranges, here(got.counts, got.x)

                self.check(step).reset()
        ep.synchronize()
        self.close(ep)

    def test_static_shapes(self):
        ep = tern.EP(
            self.comm,
            num_experts=EXPERTS,
            max_topk=TOPK,
            max_tokens=TOKENS,
            hidden=HIDDEN,
            staging_bytes=2**20,  # of expert layout's outputs, which may have a row a choice
        )
        for layout in ("rank", "expert"):
            with self.subTest(layout=layout):
                most = TOKENS * self.size * (1 if layout == "rank" else TOPK)
                route = ep.route(self.ids, layout=layout)

                def step(route=route, most=most):
                    route.update(self.ids)
                    rows = route.dispatch(self.x, self.weights, num_rows=most, zero_padding=True)
                    sums = route.combine((rows.x * (1 + self.rank / 8)).bfloat16())
                    return sums.x, rows.x

                graph = self.check(step)
                graph.reset()
                route.close()
        ep.synchronize()
        self.close(ep)


@unittest.skipUnless(DEVICE == "cuda", "graphs are of GPUs: TERN_TEST_DEVICE=cuda")
class DeepEpGraphs(Replayed):
    """The same by deep_ep, as serving frameworks capture it."""

    def buffer(self, **options):
        return deep_ep.Buffer(dist.group.WORLD, explicitly_destroy=True, **options)

    def test_deep_ep_low_latency(self):
        num_bytes = deep_ep.Buffer.get_low_latency_rdma_size_hint(
            TOKENS, HIDDEN, self.size, EXPERTS
        )
        buffer = self.buffer(
            num_rdma_bytes=num_bytes, low_latency_mode=True, num_qps_per_rank=self.share
        )
        for hooks in (False, True):
            with self.subTest(hooks=hooks):

                def step(hooks=hooks):
                    recv, counts, handle, _, hook = buffer.low_latency_dispatch(
                        self.x, self.ids, TOKENS, EXPERTS, use_fp8=False, return_recv_hook=hooks
                    )
                    if hooks:
                        hook()
                    y = (recv * self.factors[:, None, None]).bfloat16()
                    sums, _, hook = buffer.low_latency_combine(
                        y, self.ids, self.weights, handle, return_recv_hook=hooks
                    )
                    if hooks:
                        hook()
                    return sums, counts, here(counts, recv)

                self.check(step).reset()
        buffer.destroy()

    def test_deep_ep_buffers_that_grow(self):
        """What a graph has stays when larger batches come."""
        buffer = self.buffer(low_latency_mode=True, num_nvl_bytes=2**24)

        def step():
            recv, counts, handle, _, _ = buffer.low_latency_dispatch(
                self.x, self.ids, TOKENS, EXPERTS, use_fp8=False
            )
            y = (recv * self.factors[:, None, None]).bfloat16()
            sums, _, _ = buffer.low_latency_combine(y, self.ids, self.weights, handle)
            told = buffer._normal.exchange.run([counts])
            return sums, counts, here(counts, recv), told

        def grow():
            buffer.clean_low_latency_buffer(4 * TOKENS, HIDDEN, EXPERTS)
            buffer._normal.exchange.run([torch.zeros(1000, dtype=torch.int32)])

        self.check(step, grow)
        buffer.destroy()

    def test_deep_ep_worst_case(self):
        buffer = self.buffer(num_nvl_bytes=2**24)
        most = TOKENS * self.size

        def step():
            per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(self.ids, EXPERTS)
            recv, ids, weights, _, handle, _ = buffer.dispatch(
                self.x,
                topk_idx=self.ids,
                topk_weights=self.weights,
                num_tokens_per_rank=per_rank,
                num_tokens_per_expert=per_expert,
                is_token_in_rank=in_rank,
                num_worst_tokens=most,
            )
            num = (ids >= 0).any(1).sum()
            sums, _, _ = buffer.combine(
                (recv * (1 + self.rank / 8)).bfloat16(), handle, topk_weights=weights
            )
            return sums, ids, here(num.reshape(1), recv.unsqueeze(0))

        self.check(step)
        buffer.destroy()
