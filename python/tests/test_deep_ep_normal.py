# SPDX-License-Identifier: Apache-2.0
"""deep_ep in normal mode: what DeepEP's own tests check, and every bit against the reference."""

import gc
import unittest
import weakref
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist

import deep_ep
import reference as ref
import tern
from deep_ep.utils.math import calc_diff, inplace_unique, per_token_cast_back, per_token_cast_to_fp8
from world import batch, generator, values

EXPERTS, TOPK, TOKENS, HIDDEN = 16, 3, 40, 256
NUM_SMS = 8  # four channels


def tokens_of(rank):
    """Ranks have different numbers of tokens; one has none."""
    return (TOKENS, 0, TOKENS - 7, 5)[rank % 4]


class Normal(unittest.TestCase):
    options = dict(num_nvl_bytes=2**24, explicitly_destroy=True)

    def setUp(self):
        self.buffer = deep_ep.Buffer(dist.group.WORLD, **self.options)
        self.rank, self.size = self.buffer.rank, self.buffer.group_size
        self.share = EXPERTS // self.size
        self.batches = [
            batch(r, tokens_of(r), HIDDEN, EXPERTS, TOPK, seed=3) for r in range(self.size)
        ]
        self.x, self.ids, self.weights = self.batches[self.rank]
        self.all_ids = [ids.numpy() for _, ids, _ in self.batches]
        self.rows = ref.rank_rows(self.all_ids, self.rank, self.share)
        self.config = deep_ep.Config(NUM_SMS, 8, 256)

    def tearDown(self):
        self.buffer.destroy()
        self.assertIsNone(self.buffer.runtime)

    def equal(self, tensor, wanted, what=""):
        self.assertEqual(tensor.dtype, wanted.dtype, what)
        self.assertEqual(tuple(tensor.shape), tuple(wanted.shape), what)
        self.assertTrue(torch.equal(tensor, wanted), f"{what}: {tensor} is not {wanted}")

    def wanted(self, parts):
        """Every rank's `parts`, as the rows that come here."""
        rows = [parts[s][t] for s, t in self.rows]
        return torch.stack(rows) if rows else parts[0][:0]

    def layout(self, ids=None):
        got = self.buffer.get_dispatch_layout(self.ids if ids is None else ids, EXPERTS)
        names = ("num_tokens_per_rank", "num_tokens_per_rdma_rank", "num_tokens_per_expert")
        return {**dict(zip(names, got[:3])), "is_token_in_rank": got[3]}

    def masks(self, ids):
        """[tokens, ranks], in plain Python."""
        rows = [
            [any(e >= 0 and e // self.share == r for e in row) for r in range(self.size)]
            for row in ids
        ]
        return torch.tensor(rows, dtype=torch.bool).view(-1, self.size)

    def dispatch(self, x, with_ids=True, **options):
        options = {"config": self.config, **self.layout(), **options}
        if with_ids:
            options.update(topk_idx=self.ids, topk_weights=self.weights)
        return self.buffer.dispatch(x, **options)

    def test_layout(self):
        got = self.buffer.get_dispatch_layout(self.ids, EXPERTS, async_finish=True)
        mask = self.masks(self.all_ids[self.rank])
        self.equal(got[0], mask.sum(0, dtype=torch.int32))
        self.assertIsNone(got[1])
        flat = self.all_ids[self.rank].reshape(-1)
        counts = [int((flat == e).sum()) for e in range(EXPERTS)]
        self.equal(got[2], torch.tensor(counts, dtype=torch.int32))
        self.equal(got[3], mask)
        got[4].current_stream_wait()

    def test_rows_ids_weights_and_counts(self):
        for alignment in (1, 16):
            recv, ids, weights, counts, handle, event = self.dispatch(
                self.x, expert_alignment=alignment
            )
            self.assertIsNone(event.event)
            self.equal(recv, self.wanted([x for x, _, _ in self.batches]), "x")
            local = self.wanted([ids for _, ids, _ in self.batches]) - self.rank * self.share
            here = (local >= 0) & (local < self.share)
            self.equal(ids, local.masked_fill(~here, -1), "ids")
            all_weights = self.wanted([weights for _, _, weights in self.batches])
            self.equal(weights, all_weights.masked_fill(~here, 0), "weights")
            numbers = [int((ids == e).sum()) for e in range(self.share)]
            self.assertEqual(counts, [-(-n // alignment) * alignment for n in numbers])
            self.assertIsInstance(counts, list)
            self.assertEqual(len(handle), 6)

    def test_what_an_operation_reads_is_kept_until_its_event(self):
        given = self.layout()
        _, _, _, _, handle, event = self.dispatch(self.x, async_finish=True, **given)
        kept = {id(tensor) for tensor in event.extra_tensors}
        for tensor in (self.x, self.ids, self.weights, *given.values()):
            self.assertTrue(tensor is None or id(tensor) in kept)

    def test_handle_has_its_matrices(self):
        handle = self.dispatch(self.x)[4]
        prefix, channels, recv_channels, source, mask, head = handle
        masks = [self.masks(ids).int() for ids in self.all_ids]
        sent = torch.stack([m.sum(0, dtype=torch.int32) for m in masks])
        self.equal(prefix, sent.cumsum(0, dtype=torch.int32))
        self.equal(source, torch.tensor([t for _, t in self.rows], dtype=torch.int32))
        self.equal(mask, masks[self.rank].bool())
        num = NUM_SMS // 2

        def ends(mine):  # [ranks, channels]: tokens to the end of each channel
            each = -(-len(mine) // num)
            return torch.stack([mine[: (c + 1) * each].sum(0) for c in range(num)], 1).int()

        self.equal(channels, ends(masks[self.rank]))
        begins = [ends(m)[self.rank] for m in masks]
        begins = [torch.cat([torch.zeros(1).int(), b[:-1]]) for b in begins]
        self.equal(recv_channels, torch.stack(begins))
        wanted = torch.full_like(masks[self.rank], -1)
        each = -(-len(wanted) // num)
        for t, r in masks[self.rank].nonzero().tolist():
            wanted[t, r] = masks[self.rank][t // each * each : t, r].sum()
        self.equal(head, wanted)
        self.assertIs(handle[0], prefix)  # made once
        for again, made in zip(handle[-3:], (source, mask, head)):
            self.assertIs(again, made)

    def test_rows_of_a_source_lie_together(self):
        ones = torch.full_like(self.x, self.rank)
        for with_ids in (True, False):
            recv, ids, _, counts, handle, _ = self.dispatch(ones, with_ids)
            self.assertEqual(ids is not None, with_ids)
            flat = np.concatenate([ids.reshape(-1) for ids in self.all_ids])
            first = self.rank * self.share
            self.assertEqual(counts, [int((flat == first + e).sum()) for e in range(self.share)])
            begin = 0
            for source, end in enumerate(handle[0][:, self.rank].tolist()):
                self.assertTrue(bool((recv[begin:end] == source).all()))
                begin = end
            self.assertEqual(begin, len(recv))

    def test_cached_equals_first(self):
        for with_ids in (True, False):
            recv, _, _, _, handle, _ = self.dispatch(self.x, with_ids)
            again = self.buffer.dispatch(self.x, handle=handle, config=self.config)
            self.equal(again[0], recv)
            self.assertEqual(again[1:5], (None, None, None, None))
            apart = tuple(handle)  # as code that unpacks and packs makes it
            self.equal(self.buffer.dispatch(-self.x, handle=apart)[0], -recv)
        with self.assertRaises(ValueError):
            self.buffer.dispatch(self.x, handle=(torch.zeros(1),) * 6)

    def test_eight_bit_rows_with_scales_of_any_strides(self):
        cast = [per_token_cast_to_fp8(x) for x, _, _ in self.batches]
        codes, scales = cast[self.rank]
        columns = scales.t().contiguous().t()
        (recv, recv_scales), _, _, _, handle, _ = self.dispatch((codes, columns))
        self.equal(
            recv.view(torch.uint8), self.wanted([codes.view(torch.uint8) for codes, _ in cast])
        )
        self.equal(recv_scales, self.wanted([scales for _, scales in cast]))
        self.assertTrue(recv_scales.is_contiguous())
        if len(recv):
            exact = self.wanted([x for x, _, _ in self.batches])
            self.assertLess(calc_diff(per_token_cast_back(recv, recv_scales), exact), 1e-3)
        packed = columns.view(torch.int32)
        got, _, _, _, _, _ = self.buffer.dispatch((codes, packed), handle=handle)
        self.equal(got[1].view(torch.float32), recv_scales)
        sums, _, _ = self.buffer.combine(
            per_token_cast_back(recv, recv_scales), handle, config=self.config
        )
        times = self.masks(self.all_ids[self.rank]).sum(1, keepdim=True)
        self.assertLess(calc_diff(sums, per_token_cast_back(codes, scales) * times), 1e-5)

    def test_worst_case_rows(self):
        exact = self.dispatch(self.x)
        most = TOKENS * self.size
        for _ in range(2):
            recv, ids, weights, counts, handle, _ = self.dispatch(self.x, num_worst_tokens=most)
            self.assertEqual(counts, [])
            self.assertEqual(len(recv), most)
            for got, wanted in zip((recv, ids, weights), exact[:3]):
                self.equal(got[: len(wanted)], wanted)
            self.assertTrue(bool((ids[len(self.rows) :] == -1).all()))
            for i, (got, wanted) in enumerate(zip(handle, exact[4])):
                self.equal(got[: len(wanted)], wanted, f"item {i}")
            self.assertTrue(bool((handle[3][len(self.rows) :] == -1).all()))
            sums, sum_weights, _ = self.buffer.combine(recv, handle, weights)
            wanted_sums, wanted_weights, _ = self.buffer.combine(exact[0], exact[4], exact[2])
            self.equal(sums, wanted_sums)
            self.equal(sum_weights, wanted_weights)
            self.equal(self.buffer.dispatch(self.x, handle=handle)[0][: len(self.rows)], exact[0])

    def sums(self, factor, biases=()):
        mask = self.masks(self.all_ids[self.rank])
        rows = [
            ref.total(
                [ref.bf16(row * np.float32(factor(r))) for r in np.flatnonzero(reached)],
                HIDDEN,
                [bias[t] for bias in biases],
            )
            for t, (row, reached) in enumerate(zip(values(self.x), mask.numpy()))
        ]
        return torch.from_numpy(np.array(rows, np.float32).reshape(-1, HIDDEN)).bfloat16()

    def test_combine_adds_biases_and_rounds_once(self):
        recv, _, weights, _, handle, _ = self.dispatch(self.x)
        recv = recv * (1 + self.rank / 8)
        bias = torch.linspace(-1, 1, len(self.x) * HIDDEN).view(-1, HIDDEN).bfloat16()
        for biases in ((), (bias,), (bias, -0.25 * bias)):
            given = biases[0] if len(biases) == 1 else biases or None
            sums, sum_weights, event = self.buffer.combine(recv, handle, weights, bias=given)
            self.equal(sums, self.sums(lambda r: 1 + r / 8, [values(b) for b in biases]))
            self.equal(sum_weights, self.weights.masked_fill(self.ids < 0, 0))
            self.assertIsNone(event.event)
        sums, none, event = self.buffer.combine(recv, tuple(handle), async_finish=True)
        event.current_stream_wait()
        self.equal(sums, self.sums(lambda r: 1 + r / 8))
        self.assertIsNone(none)

    def test_weights_along_a_handle_without_ids(self):
        recv, _, _, _, handle, _ = self.dispatch(self.x, with_ids=False)
        per_row = torch.arange(len(recv) * 2, dtype=torch.float32).view(-1, 2)
        _, sums, _ = self.buffer.combine(recv, handle, per_row)
        self.assertEqual(tuple(sums.shape), (len(self.x), 2))
        there = [None] * self.size
        dist.all_gather_object(there, per_row.numpy())
        for t, row in enumerate(self.masks(self.all_ids[self.rank])):
            wanted = np.zeros(2, np.float32)
            for r in row.nonzero().flatten().tolist():
                rows = ref.rank_rows(self.all_ids, r, self.share)
                wanted = wanted + there[r][rows.index((self.rank, t))]
            self.assertEqual(sums[t].tolist(), wanted.tolist())

    def test_as_upstream_tests_it(self):
        """Every combination of events, inputs and ids, one after the other on one buffer."""
        random = generator(self.rank)
        scores = torch.randn((TOKENS, EXPERTS), generator=random).abs() + 1
        ids = scores.topk(TOPK, dim=-1, sorted=False)[1].to(deep_ep.topk_idx_t)
        weights = torch.full((TOKENS, TOPK), float(self.rank))
        layout = self.buffer.get_dispatch_layout(ids, EXPERTS)
        per_rank, _, per_expert, mask, _ = layout
        all_per_expert = per_expert.clone()
        dist.all_reduce(all_per_expert)
        every = [torch.empty_like(per_rank) for _ in range(self.size)]
        dist.all_gather(every, per_rank)
        shape = TOKENS, HIDDEN
        inputs = torch.randn(shape, generator=random), torch.full(shape, self.rank)
        inputs = inputs[0].bfloat16(), inputs[1].bfloat16()
        for previous in (False, True):
            for asynchronous in (False, True):
                for x in inputs + (per_token_cast_to_fp8(inputs[1]),):
                    for with_ids in (False, True):
                        options = dict(config=self.config, async_finish=asynchronous)
                        if previous:
                            options["previous_event"] = self.buffer.capture()
                            options["allocate_on_comm_stream"] = asynchronous
                        given = dict(topk_idx=ids, topk_weights=weights) if with_ids else {}
                        recv, got_ids, got_weights, counts, handle, event = self.buffer.dispatch(
                            x=x,
                            num_tokens_per_rank=per_rank,
                            is_token_in_rank=mask,
                            num_tokens_per_expert=per_expert,
                            **given,
                            **options,
                        )
                        self.assertEqual(event.event is not None, asynchronous)
                        if asynchronous:
                            event.current_stream_wait()
                        recv = per_token_cast_back(*recv) if isinstance(recv, tuple) else recv
                        self.assertEqual(len(recv), sum(int(n[self.rank]) for n in every))
                        self.assertEqual(
                            counts, all_per_expert.view(self.size, -1)[self.rank].tolist()
                        )
                        if x is not inputs[0]:
                            self.check_sources(recv, handle[0])
                        home_weights = got_weights
                        if with_ids:
                            for e, number in enumerate(counts):
                                self.assertEqual(int((got_ids == e).sum()), number)
                            highest = got_weights.amax(1, keepdim=True).expand_as(got_weights)
                            filled = torch.where(got_ids < 0, highest, got_weights)
                            if x is not inputs[0]:
                                self.check_sources(filled, handle[0])
                                home_weights = filled
                        sums, sum_weights, event = self.buffer.combine(
                            recv, handle, home_weights, **options
                        )
                        if asynchronous:
                            event.current_stream_wait()
                        ranks = mask.sum(1, keepdim=True)
                        plain = per_token_cast_back(*x) if isinstance(x, tuple) else x
                        self.assertLess(calc_diff(sums.float() / ranks, plain), 5e-6)
                        if with_ids:
                            # Once from the rank of its expert; filled ones from every rank.
                            times = 1 if x is inputs[0] else ranks
                            self.assertLess(calc_diff(sum_weights / times, weights), 1e-9)

    def check_sources(self, rows, prefix):
        begin = 0
        for source, end in enumerate(prefix[:, self.rank].tolist()):
            self.assertTrue(bool((rows[begin:end] == source).all()), f"source {source}")
            begin = end

    def test_tuning_with_a_handle(self):
        recv, _, _, _, handle, _ = self.dispatch(self.x)
        before = deep_ep.Buffer.num_sms
        try:
            deep_ep.Buffer.set_num_sms(24)
            for config in (deep_ep.Config(24, 4, 256), deep_ep.Config(24, 32, 256), None):
                self.equal(self.buffer.dispatch(self.x, handle=handle, config=config)[0], recv)
                self.equal(
                    self.buffer.combine(recv, handle, config=config)[0], self.sums(lambda r: 1)
                )
        finally:
            deep_ep.Buffer.set_num_sms(before)

    def test_handles_outlive_their_routes(self):
        """More handles than there are routes, used again from the first on, also after the buffer
        has grown."""
        handles = []
        for i in range(20):
            ids = (self.ids + i) % EXPERTS
            ids = ids.masked_fill(self.ids < 0, -1)
            handle = self.buffer.dispatch(
                self.x, **self.layout(ids), topk_idx=ids, topk_weights=self.weights
            )[4]
            handles.append((ids, handle))
        wide = torch.cat([self.x] * 64, 1)  # rows larger than the buffer was made for
        for ids, handle in handles + handles[:3]:
            rows = self.buffer.dispatch(wide, handle=handle)[0]
            ranks = self.masks(ids.numpy()).sum(1, keepdim=True)
            sums = self.buffer.combine(rows, handle)[0]
            self.assertLess(calc_diff(sums, wide * ranks), 1e-5)

    def test_outputs_that_have_no_room_in_the_window(self):
        """They are in torch's memory, and all the same."""
        _, _, _, _, handle, _ = self.dispatch(self.x)
        wide = torch.cat([self.x] * 64, 1)
        kept = [self.buffer.dispatch(wide * i, handle=handle)[0] for i in range(1, 17)]
        held = sum(rows.numel() * rows.element_size() for rows in kept)
        totals = [None] * self.size
        dist.all_gather_object(totals, held)
        self.assertGreater(max(totals), 2**24)  # more than the window has
        for i, rows in enumerate(kept, 1):
            self.equal(rows, torch.cat([self.wanted([x for x, _, _ in self.batches]) * i] * 64, 1))
        mask = self.masks(self.all_ids[self.rank])
        sums = self.buffer.combine(kept[-1], handle)[0]
        self.assertLess(calc_diff(sums, wide * 16 * mask.sum(1, keepdim=True)), 1e-5)

    def test_ids_out_of_range(self):
        """They count as -1; who has some is told in the end, when the others are through, too."""
        want = self.dispatch(self.x)
        if len(self.ids) > 0:
            self.ids = self.ids.masked_fill(self.ids < 0, EXPERTS)
        for x in (self.x, torch.cat([self.x] * 64, 1)):  # which needs a larger buffer
            got = self.dispatch(x)
            for have, rows in zip(got[:3], want[:3]):
                self.equal(have[:, :HIDDEN], rows)
            sums = self.buffer.combine(got[0], got[4])[0]
            self.equal(sums[:, :HIDDEN], self.buffer.combine(want[0], want[4])[0])
        if bool((self.ids == EXPERTS).any()):
            with self.assertRaisesRegex(tern.InvalidArgument, f"{EXPERTS}"):
                self.buffer.destroy()
        else:
            self.buffer.destroy()
        self.buffer = deep_ep.Buffer(dist.group.WORLD, **self.options)

    def test_routes_of_graphs_stay(self):
        """As if graphs were captured, which the CPU machine has none of here: their routes are
        nobody else's, until there are none."""
        self.dispatch(self.x)
        recv, ids, _, _, handle, _ = self.dispatch(self.x, num_worst_tokens=TOKENS * self.size)
        before = deep_ep.routes.capturing
        deep_ep.routes.capturing = lambda comm: True
        try:
            sums = self.buffer.combine(recv, handle)[0]
            route = weakref.ref(handle.plan.captured)
            for _ in range(deep_ep.routes.MAX_ROUTES - 1):
                self.dispatch(self.x, num_worst_tokens=TOKENS * self.size)
            with self.assertRaisesRegex(tern.NoSpace, "graphs hold all 16 routes"):
                self.dispatch(self.x, num_worst_tokens=TOKENS * self.size)
            with self.assertRaisesRegex(tern.BadState, "a graph is being captured"):
                self.buffer.dispatch(torch.cat([self.x] * 64, 1), handle=handle)
        finally:
            deep_ep.routes.capturing = before
        self.equal(self.buffer.combine(recv, handle)[0], sums)
        del handle
        gc.collect()
        self.assertIsNotNone(route())  # a replay needs it

    def test_exchanges_of_graphs_stay(self):
        """Likewise what ranks tell each other counts by."""
        exchange = self.buffer._normal.exchange
        row = [torch.full((200,), self.rank, dtype=torch.int32)]
        wanted = torch.arange(self.size, dtype=torch.int32).view(-1, 1).expand(-1, 200)
        with mock.patch.object(deep_ep.exchange, "capturing", return_value=True):
            with self.assertRaisesRegex(tern.BadState, "a graph is being captured"):
                exchange.run(row)
        self.equal(exchange.run(row), wanted)
        with mock.patch.object(deep_ep.exchange, "capturing", return_value=True):
            exchange.run(row)
        held = exchange._ep, exchange._route
        for times in (2, 4):
            free = exchange._ep
            self.equal(exchange.run(row * times), wanted.repeat(1, times))
        with self.assertRaisesRegex(tern.BadState, "closed"):
            free.synchronize()  # no graph has it
        rows = row[0][:16].view(1, -1)
        got = held[1].dispatch(rows, num_rows=self.size)  # as a replay does
        self.equal(got.x, wanted[:, :16])
        self.buffer.destroy()
        with self.assertRaisesRegex(tern.BadState, "closed"):
            held[0].synchronize()

    def test_same_bits_every_time(self):
        first = None
        for _ in range(20):
            recv, ids, weights, _, handle, _ = self.dispatch(self.x)
            sums, sum_weights, _ = self.buffer.combine(recv * 1.5, handle, weights)
            hashes = [
                deep_ep.utils.math.hash_tensor(tensor)
                for tensor in (recv, ids, weights, sums, sum_weights)
            ]
            first = first or hashes
            self.assertEqual(hashes, first)

    def test_large_batch_after_small_ones(self):
        """More tokens on one rank than the buffers were made for."""
        self.dispatch(self.x)
        tokens = 5000 if self.rank == 2 else 3
        x = torch.full((tokens, 8), self.rank).bfloat16()
        ids = (torch.arange(2 * tokens).view(-1, 2) % EXPERTS).long()
        weights = torch.ones(tokens, 2)
        recv, _, _, _, handle, _ = self.buffer.dispatch(
            x, **self.layout(ids), topk_idx=ids, topk_weights=weights
        )
        self.check_sources(recv, handle[0])
        sums, _, _ = self.buffer.combine(recv, handle)
        ranks = self.masks(ids.numpy()).sum(1, keepdim=True)
        self.equal(sums, x * ranks)

    def test_unique_numbers_of_a_row(self):
        x = torch.tensor([[3, 1, 3, -1], [0, 0, 0, 0], [-1, 2, 0, 1]])
        inplace_unique(x, 4)
        self.equal(x, torch.tensor([[3, 1, -1, -1], [0, -1, -1, -1], [2, 1, 0, -1]]))
