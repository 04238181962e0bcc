# SPDX-License-Identifier: Apache-2.0
"""Low-latency dispatch and combine, every bit against the reference."""

import gc
import weakref
from unittest import mock

import numpy as np
import torch

import reference as ref
import tern
from tern import low_latency
from world import RankTest, batch, values

EXPERTS, TOPK, TOKENS, HIDDEN = 8, 3, 16, 256


class LowLatency(RankTest):
    options = {"heap_bytes": 2**20}

    def setUp(self):
        super().setUp()
        self.share = EXPERTS // self.size
        self.ep = tern.EP(
            self.comm, num_experts=EXPERTS, max_topk=TOPK, ll_tokens=TOKENS, ll_hidden=HIDDEN
        )
        self.batches = [batch(r, TOKENS - 4 * r, HIDDEN, EXPERTS, TOPK) for r in range(self.size)]
        self.x, self.ids, self.weights = self.batches[self.rank]
        self.all_ids = [ids.numpy() for _, ids, _ in self.batches]
        self.all_x = [values(x) for x, _, _ in self.batches]

    def tearDown(self):
        self.close(self.ep)
        super().tearDown()

    def slabs(self):
        """(source, token) of each row of each local expert, which takes a token once."""
        return [
            [(s, t) for s, ids in enumerate(self.all_ids) for t, row in enumerate(ids) if e in row]
            for e in range(self.rank * self.share, (self.rank + 1) * self.share)
        ]

    def check_slabs(self, got):
        for e, rows in enumerate(self.slabs()):
            self.assertEqual(int(got.counts[e]), len(rows))
            self.same(
                got.x[e, : len(rows)],
                np.array([self.all_x[s][t] for s, t in rows]).reshape(-1, HIDDEN),
                "x",
            )
            self.same(
                got.source[e, : len(rows)], np.array([t for _, t in rows], np.int32), "source"
            )
            begin = 0
            for s in range(self.size):
                num = sum(1 for source, _ in rows if source == s)
                packed = int(got.ranges[e, s])
                self.assertEqual((packed >> 32, packed & 0xFFFFFFFF), (begin, num))
                begin += num

    def experts(self, slabs):
        """Expert e multiplies by 1 + e / 8."""
        first = self.rank * self.share
        factors = 1 + torch.arange(first, first + self.share) / 8
        return (slabs * factors[:, None, None]).bfloat16()

    def sums(self):
        return np.array(
            [
                ref.weighted(
                    [ref.bf16(row * np.float32(1 + e / 8)) for e in ids if e >= 0],
                    [w for e, w in zip(ids, weights) if e >= 0],
                    HIDDEN,
                )
                for row, ids, weights in zip(
                    self.all_x[self.rank], self.all_ids[self.rank], self.weights.numpy()
                )
            ]
        ).reshape(-1, HIDDEN)

    def test_there_and_back(self):
        stats, waited = torch.zeros(self.share, dtype=torch.int64), torch.zeros(
            self.size, dtype=torch.int64
        )
        for _ in range(2):
            got = self.ep.ll_dispatch(self.x, self.ids, sum_counts=stats, wait_ns=waited)
            self.assertIsNone(got.hook)
            self.check_slabs(got)
            sums, hook = self.ep.ll_combine(got, self.experts(got.x), self.weights)
            self.assertIsNone(hook)
            self.same(sums, self.sums(), "sums")
        self.same(stats, 2 * got.counts.long().numpy())
        version = stats._version
        got = self.ep.ll_dispatch(self.x, self.ids, sum_counts=stats, hook=True)
        self.assertEqual(stats._version, version)
        got.hook()
        self.assertGreater(stats._version, version)  # autograd sees what was written
        out = torch.zeros(len(self.x), HIDDEN).bfloat16()
        self.ep.ll_combine(got, self.experts(got.x), self.weights, out=out)
        self.assertGreater(out._version, 0)
        out.requires_grad_()
        got = self.ep.ll_dispatch(self.x, self.ids)
        with self.assertRaisesRegex(tern.Unsupported, "out requires a gradient"):
            self.ep.ll_combine(got, self.experts(got.x), self.weights, out=out)
        self.assertEqual(got.x.shape, (self.share, self.size * TOKENS, HIDDEN))

    def test_hooks_receive_later(self):
        got = self.ep.ll_dispatch(self.x, self.ids, hook=True)
        got.counts.fill_(-7)
        other = self.ep.ll_dispatch(-self.x, self.ids, lane=1, hook=True)
        self.assertTrue(bool((got.counts == -7).all()))  # nothing has come before the hook
        got.hook()
        self.check_slabs(got)
        other.hook()
        self.same(other.x[0, : int(other.counts[0])], -values(got.x)[0, : int(got.counts[0])])
        out = torch.full((len(self.x), HIDDEN), 5.0).bfloat16()
        sums, hook = self.ep.ll_combine(got, self.experts(got.x), self.weights, out=out, hook=True)
        self.assertTrue(bool((out == 5).all()))
        hook()
        self.same(out, self.sums(), "sums")
        self.assertEqual(sums.data_ptr(), out.data_ptr())
        self.same(self.ep.ll_combine(other, self.experts(other.x), self.weights)[0], -self.sums())

    def test_hook_twice_is_refused(self):
        got = self.ep.ll_dispatch(self.x, self.ids, hook=True)
        got.hook()
        with self.assertRaises(tern.BadState):
            got.hook()
        self.ep.ll_combine(got, got.x, self.weights)

    def test_batch_that_is_not_its_lanes_latest_is_refused(self):
        old = self.ep.ll_dispatch(self.x[:1], self.ids[:1], max_tokens=1)
        got = self.ep.ll_dispatch(self.x, self.ids)
        with self.assertRaisesRegex(tern.BadState, "not what lane 0 .* dispatched last"):
            self.ep.ll_combine(old, old.x, self.weights[:1])
        with tern.EP(
            self.comm, num_experts=EXPERTS, max_topk=TOPK, ll_tokens=TOKENS, ll_hidden=HIDDEN
        ) as other:
            with self.assertRaisesRegex(tern.BadState, "not what lane 0 .* dispatched last"):
                other.ll_combine(got, got.x, self.weights)
            self.comm.barrier()
        with self.assertRaises(tern.InvalidArgument):  # changes nothing
            self.ep.ll_dispatch(self.x, self.ids, lane=0, max_tokens=1)
        self.same(self.ep.ll_combine(got, self.experts(got.x), self.weights)[0], self.sums())
        self.ep.reset()
        with self.assertRaises(tern.BadState):
            self.ep.ll_combine(got, got.x, self.weights)

    def test_counts_ranges_and_source_are_of_one_block(self):
        """Made when they are looked at, once, and they outlive their batch."""
        got = self.ep.ll_dispatch(self.x, self.ids)
        self.assertFalse({"counts", "ranges", "source"} & set(vars(got)))
        begin, size = got.block.data_ptr(), 4 * got.block.numel()
        places = []
        for tensor in (got.ranges, got.counts, got.source):
            self.assertTrue(tensor.is_contiguous())
            places.append((tensor.data_ptr(), tensor.numel() * tensor.element_size()))
        self.assertEqual(places[0][0], begin)
        for (at, length), (after, _) in zip(places, places[1:] + [(begin + size, 0)]):
            self.assertLessEqual(at + length, after)
        counts = got.counts
        self.assertIs(got.counts, counts)
        numbers = (got.ranges & 0xFFFFFFFF).sum(1)
        with self.assertRaisesRegex(AttributeError, "a batch has no sources"):
            got.sources
        del got
        gc.collect()
        others = [torch.full((4096,), -7, dtype=torch.int32) for _ in range(8)]
        self.assertEqual(counts.tolist(), numbers.tolist(), len(others))

    def test_hook_keeps_all_that_it_receives(self):
        """Every output of a batch that is gone is still there for its hook, and none after it."""
        got = self.ep.ll_dispatch(self.x, self.ids, hook=True)
        outputs = [weakref.ref(t) for t in (got.x, got.block)]
        hook = got.hook
        del got
        gc.collect()
        self.assertNotIn(None, [output() for output in outputs])
        hook()
        self.assertEqual([output() for output in outputs], [None] * len(outputs))
        with self.assertRaisesRegex(tern.BadState, "this hook is over"):
            hook()

    def test_ids_out_of_range(self):
        """They count as -1, and synchronize tells of them, once in each lane."""
        ids = self.ids.clone()
        ids[ids < 0] = EXPERTS + self.rank
        for lane, hook in enumerate((True, False)):
            with self.subTest(hook=hook):
                got = self.ep.ll_dispatch(self.x, ids, hook=hook, lane=lane)
                if hook:
                    got.hook()
                self.check_slabs(got)
                sums, receive = self.ep.ll_combine(
                    got, self.experts(got.x), self.weights, hook=hook
                )
                if hook:
                    receive()
                self.same(sums, self.sums())
                if bool((self.ids < 0).any()):
                    with self.assertRaisesRegex(tern.InvalidArgument, f"{EXPERTS + self.rank}"):
                        self.ep.synchronize()
                self.ep.synchronize()

    def test_hook_on_another_stream(self):
        """As if there were a GPU: torch's allocator hears of the stream that receives, if it is
        another."""
        for receiving in (1, 2):
            made = mock.Mock()
            comm = mock.Mock(machine="cuda", torch=made.torch)
            batch = made.batch
            ep = mock.Mock(comm=comm, lanes={0: batch})
            comm.stream.return_value = receiving
            kept = ((made.x, made.ids, None), (made.out, None))
            low_latency._hook(ep, made.call, (7,), 0, batch, kept, 1)()
            made.call.assert_called_once_with(receiving, 7)
            current = made.torch.cuda.current_stream.return_value
            wanted = [] if receiving == 1 else [mock.call(current)]
            for tensor in (made.x, made.ids, made.out):
                self.assertEqual(tensor.record_stream.mock_calls, wanted)

    def test_fp8_rows(self):
        got = self.ep.ll_dispatch(self.x, self.ids, cast="fp8")
        for e, rows in enumerate(self.slabs()):
            wanted = [ref.fp8(self.all_x[s][t]) for s, t in rows]
            self.same(
                got.x[e, : len(rows)].view(torch.uint8),
                np.array([codes for codes, _ in wanted]),
                "codes",
            )
            self.same(
                got.scales[e, : len(rows)], np.array([scales for _, scales in wanted]), "scales"
            )
        self.assertEqual(got.scales.stride(1), 1)  # a word's rows lie together
        y = self.experts(torch.ones(got.x.shape).bfloat16())
        sums, _ = self.ep.ll_combine(got, y, self.weights, compression="log10")
        exact = np.array(
            [
                sum(w * (1 + e / 8) for e, w in zip(ids, weights) if e >= 0)
                for ids, weights in zip(self.all_ids[self.rank], self.weights.numpy())
            ]
        )
        self.assertLess(float(np.abs(values(sums)[:, 0] - exact).max()), 0.02)

    def test_weights_ahead_of_a_combine(self):
        got = self.ep.ll_dispatch(self.x, self.ids, self.weights, weights="dispatch")
        wanted = values(self.ep.ll_combine(got, self.experts(got.x))[0])
        for hooked in (False, True):
            got = self.ep.ll_dispatch(self.x, self.ids, weights="ahead")
            self.check_slabs(got)
            for _ in range(2):
                sums, hook = self.ep.ll_combine(
                    got, self.experts(got.x), self.weights, hook=hooked
                )
                if hooked:
                    hook()
                self.same(sums, wanted, "sums")
        with self.assertRaisesRegex(tern.InvalidArgument, "weights='ahead' has them from its"):
            self.ep.ll_combine(got, got.x)
        with self.assertRaisesRegex(tern.InvalidArgument, "topk_weights is given, but"):
            self.ep.ll_dispatch(self.x, self.ids, self.weights, weights="ahead")

    def test_rows_by_rank_weighted_there(self):
        got = self.ep.ll_dispatch(self.x, self.ids, self.weights, layout="rank", weights="dispatch")
        for s in range(self.size):
            tokens = [
                t
                for t, row in enumerate(self.all_ids[s])
                if any(e >= 0 and e // self.share == self.rank for e in row)
            ]
            self.assertEqual(int(got.counts[s]), len(tokens))
            rows = slice(s * TOKENS, s * TOKENS + len(tokens))
            self.same(got.x[rows], self.all_x[s][tokens].reshape(-1, HIDDEN))
            local = self.all_ids[s][tokens].reshape(-1, TOPK) - self.rank * self.share
            here = (local >= 0) & (local < self.share)
            self.same(got.topk_idx[rows], np.where(here, local, -1).astype(np.int32))
            self.same(
                got.topk_weights[rows],
                np.where(here, self.batches[s][2].numpy()[tokens].reshape(-1, TOPK), np.float32(0)),
            )
        sums, _ = self.ep.ll_combine(got, got.x)
        mine = [
            ref.total([row] * len({e // self.share for e in ids if e >= 0}), HIDDEN)
            for row, ids in zip(self.all_x[self.rank], self.all_ids[self.rank])
        ]
        self.same(sums, np.array(mine).reshape(-1, HIDDEN))

    def test_railed_sums(self):
        """Two domains of two ranks: rows are what they are without rails, and sums are rounded where a
        domain's leave."""
        with self.assertRaisesRegex(tern.InvalidArgument, "ll_rail is 1 with ll_mask 1"):
            tern.EP(
                self.comm,
                num_experts=EXPERTS,
                max_topk=TOPK,
                ll_tokens=TOKENS,
                ll_hidden=HIDDEN,
                ll_rail=True,
                ll_mask=True,
            )
        ep = tern.EP(
            self.comm,
            num_experts=EXPERTS,
            max_topk=TOPK,
            ll_tokens=TOKENS,
            ll_hidden=HIDDEN,
            ll_rail=True,
            domain_ranks=2,
        )
        for hook in (False, True):
            got = ep.ll_dispatch(self.x, self.ids, hook=hook)
            if hook:
                got.hook()
            self.check_slabs(got)
            sums, _ = ep.ll_combine(got, self.experts(got.x), self.weights)
            self.same(sums, self.sums(), "sums")
        got = ep.ll_dispatch(self.x, self.ids, self.weights, layout="rank", weights="dispatch")
        sums, hook = ep.ll_combine(got, (got.x * (1 + self.rank / 8)).bfloat16(), hook=True)
        hook()
        mine = []
        for row, ids in zip(self.all_x[self.rank], self.all_ids[self.rank]):
            owners = dict.fromkeys(e // self.share for e in ids if e >= 0)
            rows = [(r, ref.bf16(row * np.float32(1 + r / 8))) for r in owners]
            mine.append(ref.railed(rows, self.rank, 2, HIDDEN))
        self.same(sums, np.array(mine).reshape(-1, HIDDEN), "railed sums")
        self.close(ep)

    def test_masked_rank_is_left_out(self):
        with self.assertRaises(tern.BadState):
            self.ep.ll_mask()  # not opened with ll_mask
        ep = tern.EP(
            self.comm,
            num_experts=EXPERTS,
            max_topk=TOPK,
            ll_tokens=TOKENS,
            ll_hidden=HIDDEN,
            ll_mask=True,
        )
        self.same(ep.ll_mask(), np.zeros(self.size, np.int32))
        ep.ll_mask_set(2, True)
        mask = torch.full((self.size,), 7, dtype=torch.int32)
        self.assertIs(ep.ll_mask(mask), mask)
        self.same(mask, np.array([0, 0, 1, 0], np.int32))
        self.comm.barrier()
        if self.rank != 2:
            got = ep.ll_dispatch(self.x, self.ids)
            self.assertEqual(int((got.ranges[:, 2] & 0xFFFFFFFF).sum()), 0)
        else:
            self.assertEqual(int(ep.ll_dispatch(self.x, self.ids).counts.sum()), 0)
        ep.synchronize()
        self.comm.barrier()
        ep.ll_mask_set(-1, False)
        ep.synchronize()
        self.comm.barrier()
        self.same(ep.ll_mask(), np.zeros(self.size, np.int32))
        self.check_slabs(ep.ll_dispatch(self.x, self.ids))
        self.close(ep)
