# SPDX-License-Identifier: Apache-2.0
"""deep_ep.ElasticBuffer, every bit against the reference."""

import unittest
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist

import deep_ep
import reference as ref
import tern
from deep_ep import routes
from deep_ep.utils.math import calc_diff, per_token_cast_to_fp8
from tern.route import Route
from world import batch, values

EXPERTS, TOPK, TOKENS, HIDDEN = 8, 3, 30, 256


class Elastic(unittest.TestCase):
    def setUp(self):
        self.buffer = deep_ep.ElasticBuffer(
            dist.group.WORLD,
            num_max_tokens_per_rank=TOKENS,
            hidden=HIDDEN,
            num_topk=TOPK,
            num_gpu_timeout_secs=60,
            explicitly_destroy=True,
        )
        self.rank, self.size = self.buffer.rank_idx, self.buffer.num_ranks
        self.share = EXPERTS // self.size
        self.batches = [
            batch(r, TOKENS - 9 * r, HIDDEN, EXPERTS, TOPK, seed=7) for r in range(self.size)
        ]
        self.x, self.ids, self.weights = self.batches[self.rank]
        self.all_ids = [ids.numpy() for _, ids, _ in self.batches]

    def tearDown(self):
        self.buffer.destroy()

    def equal(self, tensor, wanted, what=""):
        self.assertEqual((tensor.dtype, tensor.shape), (wanted.dtype, wanted.shape), what)
        self.assertTrue(torch.equal(tensor, wanted), f"{what}: {tensor} is not {wanted}")

    def dispatch(self, x=None, **options):
        return self.buffer.dispatch(
            self.x if x is None else x,
            topk_idx=self.ids,
            topk_weights=self.weights,
            num_experts=EXPERTS,
            **options,
        )

    def counts(self):
        experts = range(self.rank * self.share, (self.rank + 1) * self.share)
        return [sum(int((ids == e).sum()) for ids in self.all_ids) for e in experts]

    def test_ids_out_of_range(self):
        """They count as -1; who has some is told in the end, when the others are through, too."""
        clean, bad = self.ids, self.ids.masked_fill(self.ids < 0, EXPERTS)
        for options in ({}, {"do_expand": True}):
            self.ids = clean
            want = self.dispatch(**options)
            self.ids = bad
            got = self.dispatch(**options)
            self.equal(got[0], want[0])
            sums = [self.buffer.combine(rows[0], rows[3])[0] for rows in (got, want)]
            self.equal(*sums)
        if bool((clean < 0).any()):
            with self.assertRaisesRegex(tern.InvalidArgument, f"{EXPERTS}"):
                self.buffer.destroy()
        else:
            self.buffer.destroy()
        self.assertIsNone(self.buffer.runtime)

    def check_sums(self, handle, recv, weights, rows_of):
        """With two biases. rows_of: of a token and its ids, what is added."""
        biases = torch.ones_like(self.x), self.x * 0.5
        sums, home, event = self.buffer.combine(recv, handle, weights, bias=biases)
        self.assertIsNone(event.event)
        for t, (row, ids) in enumerate(zip(values(self.x), self.all_ids[self.rank])):
            added = rows_of(row, [int(e) for e in ids if e >= 0])
            wanted = ref.total(added, HIDDEN, [values(bias)[t] for bias in biases])
            self.assertEqual(values(sums)[t].tolist(), wanted.tolist())
        self.equal(home, self.weights.masked_fill(self.ids < 0, 0))
        return sums

    # What experts and ranks make of rows: times a factor of their own.

    def of_ranks(self, row, ids):
        ranks = sorted({e // self.share for e in ids})
        return [ref.bf16(row * np.float32(1 + r / 8)) for r in ranks]

    def of_choices(self, row, ids):
        return [ref.bf16(row * np.float32(1 + e / 8)) for e in ids]

    def of_choices_on_ranks(self, row, ids):
        ranks = sorted({e // self.share for e in ids})
        on = [[e for e in ids if e // self.share == r] for r in ranks]
        return [ref.total(self.of_choices(row, mine), HIDDEN) for mine in on]

    def test_rows_by_rank(self):
        wanted = ref.rank_rows(self.all_ids, self.rank, self.share)
        rows = torch.stack([self.batches[s][0][t] for s, t in wanted])
        stats = torch.zeros(self.share, dtype=torch.int32)
        for sync in (True, False):
            recv, ids, weights, handle, event = self.dispatch(
                do_cpu_sync=sync, cumulative_local_expert_recv_stats=stats, expert_alignment=4
            )
            num = len(wanted)
            self.assertIsNone(event.event)
            self.assertEqual(len(recv), num if sync else TOKENS * self.size)
            self.equal(recv[:num], rows)
            self.assertTrue(bool((ids[num:] == -1).all()))
            aligned = [-(-n // 4) * 4 for n in self.counts()]
            self.assertEqual(handle.num_recv_tokens_per_expert_list, aligned if sync else [])
            self.equal(
                handle.psum_num_recv_tokens_per_expert, torch.tensor(aligned).cumsum(0).int()
            )
            from_each = [sum(1 for s, _ in wanted if s <= r) for r in range(self.size)]
            self.equal(
                handle.psum_num_recv_tokens_per_scaleup_rank,
                torch.tensor(from_each, dtype=torch.int32),
            )
            meta = handle.recv_src_metadata
            self.assertEqual(tuple(meta.shape), (len(recv), 2 + TOPK))
            self.assertEqual(meta[:num, 0].tolist(), [s * TOKENS + t for s, t in wanted])
            self.assertTrue(bool((meta[num:] == -1).all()))
            for (s, t), home in zip(wanted, meta[:num, 1].tolist()):
                self.assertEqual(home // TOPK, s)
                self.assertEqual(int(self.all_ids[s][t][home % TOPK]) // self.share, self.rank)
            self.check_sums(handle, recv * (1 + self.rank / 8), weights, self.of_ranks)
            again = self.buffer.dispatch(self.x, topk_weights=self.weights, handle=handle)
            self.equal(again[0][:num], rows)
            self.equal(again[2][:num], weights[:num])
            self.equal(handle.topk_idx, self.ids)
        self.assertEqual(stats.tolist(), [2 * n for n in self.counts()])

    def test_rows_by_expert(self):
        alignment = 8
        wanted, offsets = ref.expert_rows(self.all_ids, self.rank, self.share, alignment)
        for sync in (True, False):
            recv, ids, weights, handle, _ = self.dispatch(
                do_expand=True, expert_alignment=alignment, do_zero_padding=True, do_cpu_sync=sync
            )
            self.assertIsNone(ids)
            most = self.size * TOKENS * min(TOPK, self.share) + (alignment - 1) * self.share
            num = len(wanted) if sync else -(-most // alignment) * alignment
            self.assertEqual((len(recv), handle.num_expanded_tokens), (num, num))
            for i, row in enumerate(wanted):
                x, weight = torch.zeros(HIDDEN).bfloat16(), 0
                if row is not None:
                    x = self.batches[row[0]][0][row[1]]
                    weight = float(self.batches[row[0]][2][row[1], row[2]])
                self.assertTrue(torch.equal(recv[i], x))
                self.assertEqual(float(weights[i]), weight)
            ends = [offset + n for offset, n in zip(offsets, self.counts())]
            self.equal(
                handle.psum_num_recv_tokens_per_expert, torch.tensor(ends, dtype=torch.int32)
            )
            self.equal(
                handle.num_unaligned_recv_tokens_per_expert,
                torch.tensor(self.counts(), dtype=torch.int32),
            )
            self.assertIn("expanded_rows", vars(handle))  # made by the dispatch, on its stream
            gains = torch.ones(num, 1).bfloat16()
            for i in range(self.share):
                gains[offsets[i] : offsets[i + 1]] = 1 + (self.rank * self.share + i) / 8
            y = recv * gains
            twice = self.check_sums(handle, y, weights, self.of_choices_on_ranks)
            more = torch.cat([y, torch.full((3, HIDDEN), float("nan")).bfloat16()])
            sums, _, _ = self.buffer.combine(more, handle)
            self.equal(sums, self.buffer.combine(y, handle)[0])
            self.buffer.allow_multiple_reduction = False
            once = self.check_sums(handle, y, weights, self.of_choices)
            self.buffer.allow_multiple_reduction = True
            self.assertFalse(torch.equal(once, twice))  # some token was rounded on its way
            again = self.buffer.dispatch(
                self.x, handle=handle, do_expand=True, do_zero_padding=True
            )
            self.equal(again[0][: len(wanted)], recv[: len(wanted)])
            with self.assertRaises(AssertionError):
                self.buffer.dispatch(self.x, handle=handle, do_expand=True, expert_alignment=1)

    def test_expanded_rows_that_are_more_than_the_buffers(self):
        """Alignment makes many of few: they fit neither the window nor what staging begins with."""
        hidden, alignment = 1024, 8192
        x = self.x.repeat(1, hidden // HIDDEN)
        wanted, offsets = ref.expert_rows(self.all_ids, self.rank, self.share, alignment)
        self.buffer.allow_multiple_reduction = False
        for sync in (True, False):
            recv, _, weights, handle, _ = self.dispatch(
                x, do_expand=True, expert_alignment=alignment, do_cpu_sync=sync
            )
            self.assertGreater(recv.numel() * 2, 2**24)
            self.assertEqual(len(recv) == len(wanted), sync)
            for first, num in zip(offsets, self.counts()):
                for i in range(first, first + num):
                    source, token, _ = wanted[i]
                    self.equal(recv[i, :HIDDEN], self.batches[source][0][token])
            again = self.buffer.dispatch(x, handle=handle, do_expand=True)[0]
            for first, num in zip(offsets, self.counts()):
                self.equal(again[first : first + num], recv[first : first + num])
            sums, _, _ = self.buffer.combine(recv.clone(), handle)
            chosen = (self.ids >= 0).sum(1, keepdim=True)
            self.equal(sums, (x.float() * chosen).bfloat16())

    def test_buffers_that_grow_behind_expanded_rows(self):
        """With room for many tokens by rank there must be larger ones than those of the few expanded
        rows that come."""
        most, topk = 32768, 8
        x, ids = self.x[:3], torch.arange(topk).repeat(3, 1)
        for _ in range(2):
            recv, _, _, handle, _ = self.buffer.dispatch(
                x, ids, num_experts=EXPERTS, num_max_tokens_per_rank=most, do_expand=True
            )
            rows = torch.cat([self.batches[s][0][:3] for s in range(self.size)])
            self.equal(recv, rows.repeat(self.share, 1))
            self.equal(self.buffer.combine(recv, handle)[0], (x.float() * topk).bfloat16())

    def test_routes_that_graphs_hold(self):
        """As if they had all but one: what is by rank behind expanded rows takes it, too."""
        self.dispatch()
        shape = self.buffer._routes._shapes[EXPERTS]
        shape.routes.popitem()[1].close()
        shape.captured += [shape.ep.route(self.ids) for _ in range(routes.MAX_ROUTES - 1)]
        recv, _, _, handle, _ = self.dispatch(do_expand=True)
        sums, _, _ = self.buffer.combine(recv, handle)
        chosen = (self.ids >= 0).sum(1, keepdim=True)
        self.assertLess(calc_diff(sums, self.x.float() * chosen), 1e-5)

    def test_rows_that_are_not_those_of_the_handle(self):
        for do_expand, once in ((False, False), (True, False), (True, True)):
            self.buffer.allow_multiple_reduction = not once
            recv, _, weights, handle, _ = self.dispatch(do_expand=do_expand)
            for given, sentence in (
                ((recv[:-1], handle), f"x has {len(recv) - 1} rows: the handle has {len(recv)}"),
                ((recv.float(), handle), "must be BF16"),
                ((recv[0], handle), "must be BF16"),
                ((recv, handle, weights[:-1]), "topk_weights has shape"),
                ((recv, handle, weights[:, None]), "topk_weights has shape"),
            ):
                with self.subTest(do_expand=do_expand, once=once, sentence=sentence):
                    with self.assertRaisesRegex(AssertionError, sentence):
                        self.buffer.combine(*given)

    def test_processors_of_the_handle(self):
        recv, _, _, handle, _ = self.dispatch(num_sms=2)
        plain, seen = Route.plain_combine, []

        def watch(route, x, weights, biases, out, num_sms):
            seen.append(num_sms)
            return plain(route, x, weights, biases, out, num_sms)

        with mock.patch.object(Route, "plain_combine", watch):
            self.buffer.combine(recv, handle)
            self.buffer.combine(recv, handle, num_sms=4)
            recv, _, _, handle, _ = self.dispatch()
            self.buffer.combine(recv, handle)
        self.assertEqual(seen, [2, 4, None])

    def test_ids_of_the_caller_are_kept_until_an_event(self):
        recv, _, _, handle, _ = self.dispatch(do_handle_copy=False)
        self.assertIs(handle.topk_idx, self.ids)
        for event in (
            self.buffer.dispatch(self.x, handle=handle, async_with_compute_stream=True)[4],
            self.buffer.combine(recv, handle, async_with_compute_stream=True)[2],
        ):
            self.assertTrue(any(tensor is self.ids for tensor in event.extra_tensors))

    def test_wrong_statistics(self):
        """Are refused before anything is sent."""
        wrong = torch.zeros(self.share + 1, dtype=torch.int32), torch.zeros(self.share), torch.zeros(
            self.share, dtype=torch.int32, device="meta"
        )
        for stats in wrong:
            with mock.patch.object(self.buffer, "_tell") as reserve:
                with self.assertRaisesRegex(AssertionError, "it must be int32"):
                    self.dispatch(cumulative_local_expert_recv_stats=stats)
            reserve.assert_not_called()

    def test_scales_by_column(self):
        x = per_token_cast_to_fp8(self.x)
        (codes, scales), _, _, handle, _ = self.dispatch(x)
        (same, columns), _, _, _, _ = self.buffer.dispatch(
            x, handle=handle, use_tma_aligned_col_major_sf=True
        )
        self.equal(same.view(torch.uint8), codes.view(torch.uint8))
        self.equal(columns, scales)
        self.assertEqual((columns.stride(0), columns.stride(1) % 4), (1, 0))

    def test_events_and_numbers(self):
        before = self.buffer.capture()
        self.assertIsInstance(before, deep_ep.EventHandle)
        stats = torch.zeros(self.share, dtype=torch.int32)
        recv, _, _, handle, event = self.dispatch(
            previous_event=before,
            async_with_compute_stream=True,
            allocate_on_comm_stream=True,
            cumulative_local_expert_recv_stats=stats,
        )
        self.assertTrue(any(tensor is stats for tensor in event.extra_tensors))
        event.current_stream_wait()
        _, none, event = self.buffer.combine(recv, handle, async_with_compute_stream=True)
        self.assertIsNone(none)
        event.current_stream_wait()
        for on_stream in (True, False):
            self.buffer.barrier(use_comm_stream=on_stream, with_cpu_sync=True)
        sms = self.buffer.get_theoretical_num_sms(EXPERTS, TOPK)
        self.assertTrue(2 <= sms <= 24 and sms % 2 == 0)
        self.assertEqual(self.buffer.get_theoretical_num_qps(4), 4)
        self.assertEqual(self.buffer.get_logical_domain_size(), (1, self.size))
        self.assertEqual(self.buffer.get_physical_domain_size(), (1, self.size))
        hint = deep_ep.ElasticBuffer.get_buffer_size_hint
        less, more = hint(dist.group.WORLD, 64, 512, 8), hint(dist.group.WORLD, 4096, 512, 8)
        self.assertTrue(0 < less < more and more % 2**21 == 0)
        with self.assertRaisesRegex(tern.Unsupported, "Engram"):
            deep_ep.ElasticBuffer(dist.group.WORLD, 2**24, num_cpu_bytes=1)
