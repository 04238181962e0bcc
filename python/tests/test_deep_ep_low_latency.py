# SPDX-License-Identifier: Apache-2.0
"""deep_ep in low-latency mode: what DeepEP's own tests check, and bits against the reference."""

import unittest
import weakref
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist

import deep_ep
import reference as ref
import tern
from deep_ep.utils.math import calc_diff, hash_tensor, per_token_cast_back
from world import generator, values

EXPERTS, TOPK, TOKENS, HIDDEN = 8, 3, 16, 512
MARK = 128  # as upstream: rows of rank r are r - 128, their last 128 columns the token's number


class LowLatency(unittest.TestCase):
    shrink = False

    def setUp(self):
        size = dist.get_world_size()
        num_bytes = deep_ep.Buffer.get_low_latency_rdma_size_hint(TOKENS, HIDDEN, size, EXPERTS)
        self.buffer = deep_ep.Buffer(
            dist.group.WORLD,
            num_rdma_bytes=num_bytes,
            low_latency_mode=True,
            num_qps_per_rank=EXPERTS // size,
            explicitly_destroy=True,
            enable_shrink=self.shrink,
        )
        self.rank, self.size, self.share = self.buffer.rank, size, EXPERTS // size
        self.all = [self.inputs(r) for r in range(size)]
        self.x, self.ids, self.weights = self.all[self.rank]

    def tearDown(self):
        self.buffer.destroy()

    def inputs(self, rank):
        """Rows of one number, and the token's; ids with some -1; weights that do not add up to
        1."""
        random = generator(100 + rank)
        num = TOKENS - 5 * (rank % 2)
        x = torch.full((num, HIDDEN), rank - MARK).bfloat16()
        x[:, -128:] = torch.arange(num).view(-1, 1).bfloat16()
        scores = torch.rand((num, EXPERTS), generator=random)
        ids = scores.topk(TOPK, dim=-1)[1].to(deep_ep.topk_idx_t)
        for _ in range(6):
            at = [torch.randint(most, (1,), generator=random) for most in (num, TOPK)]
            ids[at[0], at[1]] = -1
        return x, ids, torch.randn((num, TOPK), generator=random).abs()

    def count(self, expert, source):
        return int((self.all[source][1] == expert).any(1).sum())

    def check(self, recv, counts, handle, exact=True):
        """The slabs of constant rows."""
        source, ranges, tokens, hidden, experts = handle
        self.assertEqual((tokens, hidden, experts), (TOKENS, HIDDEN, EXPERTS))
        self.assertEqual(tuple(recv.shape), (self.share, self.size * TOKENS, HIDDEN))
        types = (source.dtype, ranges.dtype, counts.dtype)
        self.assertEqual(types, (torch.int32, torch.int64, torch.int32))
        for e in range(self.share):
            numbers = (ranges[e] & (2**32 - 1)).tolist()
            wanted = [self.count(self.rank * self.share + e, s) for s in range(self.size)]
            self.assertEqual(numbers, wanted)
            self.assertEqual(int(counts[e]), sum(wanted))
            rows = recv[e, : sum(wanted)]
            self.assertTrue(torch.equal(rows[:, :-128].amin(1), rows[:, :-128].amax(1)))
            marks = source[e, : sum(wanted)].view(-1, 1).expand(-1, 128) % TOKENS
            if exact:
                self.assertTrue(bool((rows[:, -128:] == marks).all()))
            else:
                self.assertLess(calc_diff(rows[:, -128:], marks), 0.007)
            for s in range(self.size):
                begin = int(ranges[e, s] >> 32)
                part = rows[begin : begin + numbers[s], :-128]
                if exact:
                    self.assertTrue(bool((part == s - MARK).all()))
                else:
                    self.assertLess(calc_diff(part, torch.full_like(part, s - MARK)), 0.007)

    def test_every_form_there_and_back(self):
        """Hook or event, BF16 or FP8 with scales of any kind, one or two dispatches before two
        combines, the second without a copy."""
        forms = [(False,) * 3, (True, False, False), (True, True, False), (True,) * 3]
        for with_hook in (False, True):
            for fp8, round_scale, ue8m0 in forms:
                for times in (1, 2):
                    stats = torch.zeros(self.share, dtype=torch.int32)
                    for _ in range(times):
                        recv, counts, handle, event, hook = self.buffer.low_latency_dispatch(
                            self.x,
                            self.ids,
                            TOKENS,
                            EXPERTS,
                            cumulative_local_expert_recv_stats=stats,
                            use_fp8=fp8,
                            round_scale=round_scale,
                            use_ue8m0=ue8m0,
                            async_finish=not with_hook,
                            return_recv_hook=with_hook,
                        )
                        self.assertEqual(hook is not None, with_hook)
                        hook() if with_hook else event.current_stream_wait()
                    self.assertTrue(torch.equal(stats, times * counts))
                    if fp8:
                        recv, scales = recv
                        words = HIDDEN // (512 if ue8m0 else 128)
                        self.assertEqual(tuple(scales.shape), (self.share, recv.shape[1], words))
                        self.assertEqual(scales.stride(1), 1)
                        self.assertEqual(scales.dtype, torch.int32 if ue8m0 else torch.float32)
                        recv = per_token_cast_back(
                            recv.view(-1, HIDDEN), scales.reshape(-1, words)
                        ).view(recv.shape)
                    self.check(recv, counts, handle, exact=not round_scale)
                    for zero_copy in (False, True):
                        out = torch.empty_like(self.x)
                        y = recv
                        if zero_copy:
                            self.buffer.get_next_low_latency_combine_buffer(handle)[:, :, :] = recv
                            y = recv * 0
                        sums, event, hook = self.buffer.low_latency_combine(
                            y,
                            self.ids,
                            self.weights,
                            handle,
                            zero_copy=zero_copy,
                            async_finish=not with_hook,
                            return_recv_hook=with_hook,
                            out=out,
                        )
                        hook() if with_hook else event.current_stream_wait()
                        self.assertEqual(sums.data_ptr(), out.data_ptr())
                        if not round_scale:
                            self.check_sums(sums, 9e-4 if fp8 else 1e-5)

    def check_sums(self, sums, bound, x=None):
        weights = self.weights.masked_fill(self.ids < 0, 0).sum(1, keepdim=True)
        wanted = (self.x if x is None else x).float() * weights
        self.assertFalse(bool(sums.isnan().any()))
        self.assertLess(calc_diff(sums, wanted), bound)

    def test_sums_bit_for_bit(self):
        random = np.random.default_rng([9, self.rank])
        x = torch.from_numpy(random.standard_normal(self.x.shape, np.float32)).bfloat16()
        recv, _, handle, _, _ = self.buffer.low_latency_dispatch(
            x, self.ids, TOKENS, EXPERTS, use_fp8=False
        )
        experts = 1 + torch.arange(self.rank * self.share, (self.rank + 1) * self.share) / 8
        sums, _, hook = self.buffer.low_latency_combine(
            (recv * experts[:, None, None]).bfloat16(), self.ids, self.weights, handle
        )
        self.assertIsNone(hook)
        for t, (row, ids, weights) in enumerate(zip(values(x), self.ids, self.weights)):
            wanted = ref.weighted(
                [ref.bf16(row * np.float32(1 + e / 8)) for e in ids.tolist() if e >= 0],
                [w for e, w in zip(ids.tolist(), weights.numpy()) if e >= 0],
                HIDDEN,
            )
            self.assertEqual(values(sums)[t].tolist(), wanted.tolist())

    def test_eight_bits_are_the_casts(self):
        random = np.random.default_rng([11, self.rank])
        every = [torch.from_numpy(random.standard_normal(self.x.shape, np.float32)).bfloat16()]
        boxes = [None] * self.size
        dist.all_gather_object(boxes, values(every[0]))
        (recv, scales), counts, handle, _, _ = self.buffer.low_latency_dispatch(
            every[0], self.ids, TOKENS, EXPERTS
        )
        for e in range(self.share):
            for s in range(self.size):
                begin, number = int(handle[1][e, s] >> 32), int(handle[1][e, s] & (2**32 - 1))
                for row in range(begin, begin + number):
                    codes, wanted = ref.fp8(boxes[s][int(handle[0][e, row])])
                    self.assertEqual(recv[e, row].view(torch.uint8).tolist(), codes.tolist())
                    self.assertEqual(scales[e, row].tolist(), wanted.tolist())

    def test_logarithmic_format(self):
        torch.manual_seed(self.rank)
        for random in (False, True):
            x = self.x * torch.rand(self.x.shape).bfloat16() * 0.5 if random else self.x
            recv, _, handle, _, _ = self.buffer.low_latency_dispatch(
                x, self.ids, TOKENS, EXPERTS, use_fp8=False
            )
            sums, _, _ = self.buffer.low_latency_combine(
                recv, self.ids, self.weights, handle, use_logfmt=True
            )
            self.check_sums(sums, 1e-5, x)
        with self.assertRaises(AssertionError):
            self.buffer.low_latency_combine(
                recv, self.ids, self.weights, handle, use_logfmt=True, zero_copy=True
            )

    def test_same_hashes_twenty_times(self):
        first = None
        for i in range(20):
            (recv, scales), counts, handle, event, hook = self.buffer.low_latency_dispatch(
                self.x, self.ids, TOKENS, EXPERTS, return_recv_hook=i % 2 == 1
            )
            if hook is not None:
                hook()
            hashes = []
            for e, number in enumerate(counts.tolist()):
                hashes.append(hash_tensor(recv[e, :number].view(torch.uint8)))
                hashes.append(hash_tensor(scales[e, :number]))
            y = torch.ones(recv.shape).bfloat16()
            sums, _, _ = self.buffer.low_latency_combine(y, self.ids, self.weights, handle)
            hashes.append(hash_tensor(sums))
            first = first or hashes
            self.assertEqual(hashes, first)

    def test_two_batches_in_flight(self):
        one = self.buffer.low_latency_dispatch(
            self.x, self.ids, TOKENS, EXPERTS, use_fp8=False, return_recv_hook=True
        )
        two = self.buffer.low_latency_dispatch(
            -self.x, self.ids, TOKENS, EXPERTS, use_fp8=False, return_recv_hook=True
        )
        one[4]()
        sums, _, hook = self.buffer.low_latency_combine(
            one[0], self.ids, self.weights, one[2], return_recv_hook=True
        )
        two[4]()
        hook()
        self.check_sums(sums, 1e-5)
        apart = tuple(list(two[2]))
        sums, _, _ = self.buffer.low_latency_combine(two[0], self.ids, self.weights, apart)
        self.check_sums(-sums, 1e-5)
        self.buffer.low_latency_dispatch(self.x, self.ids, TOKENS, EXPERTS)
        self.buffer.low_latency_dispatch(self.x, self.ids, TOKENS, EXPERTS)
        with self.assertRaises(tern.BadState):
            self.buffer.low_latency_combine(two[0], self.ids, self.weights, two[2])

    def test_buffers_do_not_grow_under_hooks(self):
        def grow():
            self.buffer.clean_low_latency_buffer(2 * TOKENS, HIDDEN, EXPERTS)

        recv, counts, handle, _, hook = self.buffer.low_latency_dispatch(
            self.x, self.ids, TOKENS, EXPERTS, use_fp8=False, return_recv_hook=True
        )
        with self.assertRaisesRegex(tern.BadState, "call its hook first"):
            grow()
        hook()
        self.check(recv, counts, handle)
        sums, _, hook = self.buffer.low_latency_combine(
            recv, self.ids, self.weights, handle, return_recv_hook=True
        )
        with self.assertRaisesRegex(tern.BadState, "call its hook first"):
            grow()
        hook()
        self.check_sums(sums, 1e-5)
        grow()
        with self.assertRaisesRegex(tern.BadState, "combine follows its dispatch"):
            self.buffer.low_latency_combine(recv, self.ids, self.weights, handle)

    def test_other_sizes_and_the_other_mode(self):
        """Larger batches, wider rows, other experts, normal mode in between."""
        for tokens, hidden, experts in ((TOKENS, HIDDEN, EXPERTS), (48, 1024, 12), (8, 640, 12)):
            self.buffer.clean_low_latency_buffer(tokens, hidden, experts)
            x = torch.full((tokens, hidden), 1.0 + self.rank).bfloat16()
            ids = (torch.arange(2 * tokens).view(-1, 2) + self.rank) % experts
            weights = torch.full((tokens, 2), 0.5)
            recv, _, handle, _, _ = self.buffer.low_latency_dispatch(
                x, ids, tokens, experts, use_fp8=False
            )
            self.assertEqual(tuple(recv.shape), (experts // self.size, self.size * tokens, hidden))
            sums, _, _ = self.buffer.low_latency_combine(recv, ids, weights, handle)
            self.assertTrue(torch.equal(sums, x))
            per_rank, _, per_expert, mask, _ = self.buffer.get_dispatch_layout(ids, experts)
            rows = self.buffer.dispatch(
                x,
                num_tokens_per_rank=per_rank,
                is_token_in_rank=mask,
                num_tokens_per_expert=per_expert,
            )
            sums, _, _ = self.buffer.combine(rows[0], rows[4])
            self.assertTrue(torch.equal(sums, x * mask.sum(1, keepdim=True)))

    def test_ids_out_of_range(self):
        """They count as -1, and are told of in the end, whatever buffers came after."""
        ids = self.ids.masked_fill(self.ids < 0, EXPERTS)
        for with_hook in (False, True):
            recv, counts, handle, _, hook = self.buffer.low_latency_dispatch(
                self.x, ids, TOKENS, EXPERTS, use_fp8=False, return_recv_hook=with_hook
            )
            if with_hook:
                hook()
            self.check(recv, counts, handle)
            sums, _, _ = self.buffer.low_latency_combine(recv, ids, self.weights, handle)
            self.check_sums(sums, 1e-5)
        self.buffer.clean_low_latency_buffer(2 * TOKENS, HIDDEN, EXPERTS)
        with self.assertRaisesRegex(tern.InvalidArgument, f"{EXPERTS}"):
            self.buffer.destroy()
        self.assertIsNone(self.buffer.runtime)

    def test_buffers_of_graphs_stay(self):
        """As if graphs were captured, which the CPU machine has none of here: what they hold is
        open when larger buffers are made, and until the Buffer is destroyed."""
        mode = self.buffer._low_latency
        recv, counts, handle, _, _ = self.buffer.low_latency_dispatch(
            self.x, self.ids, TOKENS, EXPERTS, use_fp8=False
        )
        given = weakref.ref(self.buffer.get_next_low_latency_combine_buffer(handle))
        with mock.patch.object(deep_ep.low_latency, "capturing", return_value=True):
            sums, _, _ = self.buffer.low_latency_combine(recv, self.ids, self.weights, handle)
            with self.assertRaisesRegex(tern.BadState, "a graph is being captured"):
                self.buffer.low_latency_dispatch(self.x, self.ids, 2 * TOKENS, EXPERTS)
        held = mode._ep
        self.buffer.clean_low_latency_buffer(2 * TOKENS, HIDDEN, EXPERTS)
        free = mode._ep
        self.buffer.clean_low_latency_buffer(4 * TOKENS, HIDDEN, EXPERTS)
        with self.assertRaisesRegex(tern.BadState, "closed"):
            free.synchronize()  # no graph has it
        self.assertIsNotNone(given())
        got = held.ll_dispatch(self.x, self.ids, max_tokens=TOKENS)  # as a replay does
        self.check(got.x, got.counts, (got.source, got.ranges, TOKENS, HIDDEN, EXPERTS))
        self.assertTrue(torch.equal(held.ll_combine(got, got.x, self.weights)[0], sums))
        self.buffer.destroy()
        self.assertIsNone(given())
        with self.assertRaisesRegex(tern.BadState, "closed"):
            held.synchronize()

    def test_hooks_outside_of_inference_mode(self):
        for mode in (torch.inference_mode, torch.no_grad):
            with torch.inference_mode():
                x, weights = self.x.clone(), self.weights.clone()
            with mode():
                stats = torch.zeros(self.share, dtype=torch.int32)
                waited = torch.zeros(self.size, dtype=torch.int64)
                out = torch.empty_like(self.x)
                recv, counts, handle, _, hook = self.buffer.low_latency_dispatch(
                    x,
                    self.ids,
                    TOKENS,
                    EXPERTS,
                    cumulative_local_expert_recv_stats=stats,
                    dispatch_wait_recv_cost_stats=waited,
                    use_fp8=False,
                    return_recv_hook=True,
                )
            hook()
            self.check(recv, counts, handle)
            self.assertTrue(torch.equal(stats, counts))
            with mode():
                sums, _, hook = self.buffer.low_latency_combine(
                    recv, self.ids, weights, handle, return_recv_hook=True, out=out
                )
            hook()
            self.check_sums(sums, 1e-5)

    def test_hints_of_some_ranks(self):
        """Who has asked for a size, or for which one last, differs; the buffers are made by the
        first call then, on all ranks."""
        size = deep_ep.low_latency.size_hint(TOKENS, HIDDEN, EXPERTS)
        known, others = (TOKENS, HIDDEN, EXPERTS), (2 * TOKENS, HIDDEN, EXPERTS)
        for hints in (
            {size: known} if self.rank == 0 else {},
            {size: known if self.rank == 0 else others},
            {},
            {size: known},
        ):
            with mock.patch.dict(deep_ep.low_latency._hints, hints, clear=True):
                buffer = deep_ep.Buffer(
                    dist.group.WORLD,
                    num_rdma_bytes=size,
                    low_latency_mode=True,
                    explicitly_destroy=True,
                )
            boxes = [None] * self.size
            dist.all_gather_object(boxes, hints)
            is_open = buffer._low_latency._ep is not None
            self.assertEqual(is_open, boxes == [{size: known}] * self.size)
            recv, counts, handle, _, _ = buffer.low_latency_dispatch(
                self.x, self.ids, TOKENS, EXPERTS, use_fp8=False
            )
            self.check(recv, counts, handle)
            buffer.destroy()

    def test_time_waited_for_sources(self):
        waited, back = torch.zeros((2, self.size), dtype=torch.int64)
        for _ in range(3):
            recv, _, handle, _, _ = self.buffer.low_latency_dispatch(
                self.x,
                self.ids,
                TOKENS,
                EXPERTS,
                dispatch_wait_recv_cost_stats=waited,
                use_fp8=False,
            )
            self.buffer.low_latency_combine(
                recv, self.ids, self.weights, handle, combine_wait_recv_cost_stats=back
            )
        self.assertTrue(bool((waited >= 0).all() and (back >= 0).all()))
        self.assertGreater(int(waited.sum() + back.sum()), 0)
        self.assertLess(int(waited.max()), 60 * 10**9)

    def test_wrong_statistics(self):
        """Are refused before anything is sent."""
        wrong = torch.zeros(self.share + 1, dtype=torch.int32), torch.zeros(self.share), torch.zeros(
            self.share, dtype=torch.int32, device="meta"
        )
        for stats in wrong:
            with mock.patch.object(self.buffer._low_latency, "reserve") as reserve:
                with self.assertRaisesRegex(AssertionError, "it must be int32"):
                    self.buffer.low_latency_dispatch(
                        self.x,
                        self.ids,
                        TOKENS,
                        EXPERTS,
                        cumulative_local_expert_recv_stats=stats,
                    )
            reserve.assert_not_called()

    def test_a_call_refused_on_one_rank(self):
        """Leaves it where its peers are: the next dispatch meets theirs."""
        if self.rank == 0:
            with self.assertRaisesRegex(tern.InvalidArgument, "float64"):
                self.buffer.low_latency_dispatch(self.x.double(), self.ids, TOKENS, EXPERTS)
        recv, counts, handle, event, _ = self.buffer.low_latency_dispatch(
            self.x, self.ids, TOKENS, EXPERTS, use_fp8=False, async_finish=True
        )
        event.current_stream_wait()
        self.check(recv, counts, handle)

    def test_masks_need_enable_shrink(self):
        with self.assertRaisesRegex(AssertionError, "enable_shrink"):
            self.buffer.low_latency_clean_mask_buffer()

    def test_wrong_arguments(self):
        with self.assertRaisesRegex(AssertionError, "needs round_scale"):
            self.buffer.low_latency_dispatch(self.x, self.ids, TOKENS, EXPERTS, use_ue8m0=True)
        with self.assertRaisesRegex(AssertionError, "exclude each other"):
            self.buffer.low_latency_dispatch(
                self.x, self.ids, TOKENS, EXPERTS, async_finish=True, return_recv_hook=True
            )
        with self.assertRaisesRegex(tern.Unsupported, "use_nvfp4 is no argument"):
            self.buffer.low_latency_dispatch(self.x, self.ids, TOKENS, EXPERTS, use_nvfp4=True)
        recv, _, handle, _, _ = self.buffer.low_latency_dispatch(
            self.x, self.ids, TOKENS, EXPERTS, use_fp8=False, use_nvfp4=False
        )
        with self.assertRaisesRegex(tern.Unsupported, "overlap is no argument"):
            self.buffer.low_latency_combine(recv, self.ids, self.weights, handle, overlap=True)
        with self.assertRaisesRegex(ValueError, "none that low_latency_dispatch gave"):
            self.buffer.low_latency_combine(recv, self.ids, self.weights, (torch.zeros(1),) * 2)
        with self.assertRaisesRegex(AssertionError, "was not called for this handle"):
            self.buffer.low_latency_combine(recv, self.ids, self.weights, handle, zero_copy=True)
