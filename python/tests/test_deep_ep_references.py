# SPDX-License-Identifier: Apache-2.0
"""deep_ep.ElasticBuffer against deep_ep.utils.refs, which is plain torch, bit for bit: batches of
deep_ep.utils.gate, in the words that tests written for DeepEP use."""

import itertools
import unittest

import torch
import torch.distributed as dist

import deep_ep
from deep_ep.utils import gate, refs
from deep_ep.utils.math import align, count_bytes, per_token_cast_to_fp8
from world import DEVICE, generator

EXPERTS, TOPK, TOKENS, HIDDEN = 16, 3, 40, 256


def same(have, wanted):
    return have.dtype == wanted.dtype and torch.equal(bits(have), bits(wanted))


def bits(tensor):
    return tensor.contiguous().view(torch.uint8)


class References(unittest.TestCase):
    def open(self, **options):
        return deep_ep.ElasticBuffer(
            dist.group.WORLD,
            num_max_tokens_per_rank=TOKENS,
            hidden=HIDDEN,
            num_topk=TOPK,
            num_gpu_timeout_secs=60,
            explicitly_destroy=True,
            **options,
        )

    def batch(self, seed):
        """Ids, some of them -1, and weights, of a router that is out of balance."""
        torch.manual_seed(seed + dist.get_rank())
        num = TOKENS - dist.get_rank()
        scores = gate.get_unbalanced_scores(num, EXPERTS, dist.get_world_size(), TOPK, 1.5, True)
        weights, ids = torch.topk(scores, TOPK, dim=-1, sorted=False)
        ids = ids.to(deep_ep.topk_idx_t)
        ids[torch.rand(ids.shape) < 0.2] = -1
        return ids, weights.masked_fill(ids < 0, 0)

    def check(self, buffer, case, reduces, sync, alignment, eight_bits, num_biases, copy):
        ids, weights = self.batch(case)
        x = torch.randn((len(ids), HIDDEN), generator=generator(case), device=DEVICE).bfloat16()
        biases = tuple(torch.randn_like(x) for _ in range(num_biases))
        bias = biases if num_biases == 2 else biases[0] if biases else None
        x = per_token_cast_to_fp8(x) if eight_bits else x
        wanted = refs.dispatch(x, ids, weights, TOKENS, EXPERTS)
        given = dict(num_experts=EXPERTS, expert_alignment=alignment, do_cpu_sync=sync)
        given.update(topk_idx=ids, topk_weights=weights, do_handle_copy=copy)
        recv, recv_ids, recv_weights, handle, _ = buffer.dispatch(x, **given)
        rows, none, row_weights, expanded, _ = buffer.dispatch(x, do_expand=True, **given)
        self.assertIsNone(none)
        self.assertEqual(handle.topk_idx.data_ptr() != ids.data_ptr(), copy)
        num = len(wanted[1])
        for made in (handle, expanded):
            self.assertEqual(int(made.psum_num_recv_tokens_per_scaleup_rank[-1]), num)
            meta = made.recv_src_metadata
            self.assertEqual(len(meta), num if sync else TOKENS * buffer.num_ranks)
            self.assertTrue(same(meta[:num, 0], wanted[3]))
            self.assertTrue(bool((meta[num:] == -1).all()))
        # Rows, ids and weights, as they are and by the places of expanded rows.
        parts = [recv_ids, recv_weights, *(recv if eight_bits else (recv,))]
        sent = [wanted[1], wanted[2], *(wanted[0] if eight_bits else (wanted[0],))]
        outside = wanted[1] < 0
        for i, (have, want) in enumerate(zip(parts, sent)):
            want = want.masked_fill(outside, 0) if i == 1 else want
            self.assertTrue(same(have[:num], want), i)
        place = expanded.recv_src_metadata[:num, 2:]
        self.assertTrue(torch.equal(place < 0, outside))
        token = outside.logical_not().nonzero()[:, 0]
        for have, want in zip(rows if eight_bits else (rows,), sent[2:]):
            have, want = bits(have), bits(want)
            self.assertTrue(same(have[place[~outside].long()], want[token]))
        self.assertTrue(same(row_weights[place[~outside].long()], wanted[2][~outside]))
        # Along the handles once more; between the experts there are zeros.
        again = buffer.dispatch(x, handle=handle)
        self.assertTrue(same(again[1][:num], wanted[1]))
        self.assertTrue(torch.equal(again[3].dst_buffer_slot_idx, handle.dst_buffer_slot_idx))
        again = buffer.dispatch(
            x, topk_weights=weights, handle=expanded, do_expand=True, do_zero_padding=True
        )
        for end in expanded.psum_num_recv_tokens_per_expert.tolist():
            gap = slice(end, align(end, alignment))
            self.assertFalse(bool(again[2][gap].any()))
            for part in again[0] if eight_bits else (again[0],):
                self.assertFalse(bool(bits(part[gap]).any()))
        self.check_slots(handle, ids, num)
        # There and back.
        mine = dist.get_rank() * TOKENS + torch.arange(len(ids))
        y = refs.generate_pre_combine_data(mine, TOKENS, TOPK, HIDDEN)
        y[ids == -1] = 0
        local = refs.generate_pre_combine_data(wanted[3], TOKENS, TOPK, HIDDEN)
        by_choice = torch.zeros((len(row_weights), HIDDEN), dtype=torch.bfloat16)
        by_choice[place[~outside].long()] = local[~outside]
        by_rank = torch.zeros((len(recv_ids), HIDDEN), dtype=torch.bfloat16)
        by_rank[:num] = refs.ordered_accumulate(local.masked_fill(outside[:, :, None], 0))

        def total(*reductions):
            domains = buffer.get_logical_domain_size()
            return refs.combine(y, ids, *domains, EXPERTS, bias, *reductions)

        sums, home, _ = buffer.combine(by_rank, handle, recv_weights, bias)
        self.assertTrue(same(sums, total(True, False)))
        self.assertTrue(same(home, weights))
        sums, home, _ = buffer.combine(by_choice, expanded, row_weights, bias)
        self.assertTrue(same(sums, total(reduces, False)))
        self.assertTrue(same(home, weights))

    def check_slots(self, handle, ids, num):
        """Of every rank's tokens, the rows that they have here: each row once a token."""
        slots = [None] * dist.get_world_size()
        dist.all_gather_object(slots, (handle.dst_buffer_slot_idx.tolist(), ids.tolist()))
        rank, share = dist.get_rank(), EXPERTS // dist.get_world_size()
        here = []
        for places, choices in slots:
            for row, experts in zip(places, choices):
                self.assertTrue(all((p < 0) == (e < 0) for p, e in zip(row, experts)))
                mine = {p for p, e in zip(row, experts) if e >= 0 and e // share == rank}
                self.assertLessEqual(len(mine), 1)
                here += mine
        self.assertEqual(here, list(range(num)))

    def test_every_form_there_and_back(self):
        forms = itertools.product((True, False), (8, 1), (True, False), (0, 1, 2))
        for reduces in (True, False):
            buffer = self.open(allow_multiple_reduction=reduces)
            try:
                for case, (sync, alignment, eight_bits, biases) in enumerate(forms):
                    if case % 2 == reduces:
                        copy = case % 3 > 0
                        self.check(buffer, case, reduces, sync, alignment, eight_bits, biases, copy)
            finally:
                buffer.destroy()
            forms = itertools.product((True, False), (8, 1), (True, False), (0, 1, 2))

    def test_rounding_in_groups(self):
        """Four ranks in groups of two: 1, half a step and half a step are 1 and a step in FP32."""
        half = 2.0**-8
        y = torch.tensor([1.0, half, half]).bfloat16().view(1, 3, 1)
        ids = torch.tensor([[0, 1, 2]])

        def total(*given):
            return float(refs.combine(y, ids, 2, 2, 4, None, *given))

        self.assertEqual(total(False, False), 1 + 2 * half)
        self.assertEqual(total(True, False), 1 + 2 * half)
        self.assertEqual(total(True, True), 1)  # 1 + half is rounded to even, and again
        one_rank = torch.zeros_like(ids)
        one_rank[0, 2] = 1
        self.assertEqual(float(refs.combine(y, one_rank, 1, 2, 2, None, True, False)), 1)

    def test_scores_out_of_balance(self):
        torch.manual_seed(3)
        tokens, ranks, share = 2048, 8, 4
        for ratio, topk, precise in itertools.product((1.0, 2.0), (1, 6), (True, False)):
            scores = gate.get_unbalanced_scores(tokens, ranks * share, ranks, topk, ratio, precise)
            self.assertEqual((scores.shape, scores.dtype), ((tokens, ranks * share), torch.float32))
            owners = scores.topk(topk, 1).indices // share
            goes = torch.zeros((tokens, ranks)).scatter_(1, owners, 1).sum(0)
            apart = float(goes[0] / goes[1:].mean())
            # Drawn at random, some 256 tokens are within 16 of their mean two times in three.
            bound = 0.1 if precise else 0.25
            self.assertLess(abs(apart - ratio), bound * ratio, (ratio, topk, precise))
            if precise:
                self.assertLess(float(goes[1:].max() / goes[1:].min()), 1.02)
        with self.assertRaises(AssertionError):
            gate.get_unbalanced_scores(8, 8, 8, 4, 4.0, True)  # rank 0 would get tokens twice
        self.assertEqual(count_bytes(scores), 4 * tokens * ranks * share)
