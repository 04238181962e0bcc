# SPDX-License-Identifier: Apache-2.0
"""deep_ep with ranks that are left out: by a call, and because they stopped at a dispatch, a
combine and a clean."""

import os
import unittest

import torch
import torch.distributed as dist

import deep_ep
import tern
from deep_ep.utils.math import calc_diff
from world import generator

EXPERTS, TOPK, TOKENS, HIDDEN = 8, 2, 12, 256
STOPS = {1: "dispatch", 3: "combine", 2: "clean"}


class Masks(unittest.TestCase):
    def setUp(self):
        self.before = os.environ.get("TERN_TIMEOUT_MS")
        os.environ["TERN_TIMEOUT_MS"] = "4000"
        size = dist.get_world_size()
        num_bytes = deep_ep.Buffer.get_low_latency_rdma_size_hint(TOKENS, HIDDEN, size, EXPERTS)
        self.buffer = deep_ep.Buffer(
            dist.group.WORLD,
            num_rdma_bytes=num_bytes,
            low_latency_mode=True,
            explicitly_destroy=True,
            enable_shrink=True,
        )
        self.rank, self.size = self.buffer.rank, size
        self.share = EXPERTS // size
        random = generator(self.rank)
        self.x = torch.randn((TOKENS, HIDDEN), generator=random).bfloat16()
        self.ids = torch.rand((TOKENS, EXPERTS), generator=random).topk(TOPK)[1]
        self.weights = torch.rand((TOKENS, TOPK), generator=random)

    def tearDown(self):
        if self.before is None:
            del os.environ["TERN_TIMEOUT_MS"]
        else:
            os.environ["TERN_TIMEOUT_MS"] = self.before

    def masked(self):
        status = torch.full((self.size,), 7, dtype=torch.int32)
        self.buffer.low_latency_query_mask_buffer(status)
        self.assertTrue(bool(((status == 0) | (status == 1)).all()))
        return status.nonzero().flatten().tolist()

    def there(self):
        return self.buffer.low_latency_dispatch(
            self.x, self.ids, TOKENS, EXPERTS, use_fp8=False, async_finish=True
        )

    def back(self, got, without):
        sums, _, _ = self.buffer.low_latency_combine(got[0], self.ids, self.weights, got[2])
        if without is not None:
            alive = torch.tensor([e // self.share not in without for e in range(EXPERTS)])
            kept = (self.weights * alive[self.ids]).sum(1, keepdim=True)
            self.assertLess(calc_diff(sums, self.x.float() * kept), 1e-5)

    def test_masks_by_call(self):
        self.assertEqual(self.masked(), [])
        got = self.there()
        self.back(got, set())
        dist.barrier()
        self.buffer.low_latency_update_mask_buffer(2, True)
        self.assertEqual(self.masked(), [2])
        dist.barrier()
        if self.rank != 2:
            got = self.there()
            ranges = got[2][1] & (2**32 - 1)
            self.assertEqual(int(ranges[:, 2].sum()), 0)
            self.back(got, {2})
        dist.barrier()
        for tokens, experts in ((2 * TOKENS, EXPERTS), (TOKENS, 2 * EXPERTS)):
            with self.assertRaisesRegex(tern.BadState, r"every rank: \[2\] are masked"):
                self.buffer.clean_low_latency_buffer(tokens, HIDDEN, experts)
        dist.barrier()
        self.buffer.low_latency_update_mask_buffer(2)
        self.assertEqual(self.masked(), [])
        dist.barrier()
        # The masked rank has issued fewer operations: all of its own first.
        if self.rank == 2:
            self.buffer.low_latency_update_mask_buffer(2, True)
            self.back(self.there(), None)
            self.buffer.low_latency_clean_mask_buffer()
        dist.barrier()
        self.assertEqual(self.masked(), [])
        self.back(self.there(), set())
        dist.barrier()
        self.buffer.clean_low_latency_buffer(2 * TOKENS, HIDDEN, EXPERTS)  # with all ranks it grows
        self.back(self.there(), set())
        dist.barrier()
        self.buffer.destroy()

    def test_stopped_ranks_are_masked(self):
        if STOPS.get(self.rank) == "dispatch":
            return self.stop()
        got = self.there()
        self.assertEqual(self.masked(), [1])
        if STOPS.get(self.rank) == "combine":
            return self.stop()
        self.back(got, None)
        self.assertEqual(self.masked(), [1, 3])
        got = self.there()
        self.back(got, {1, 3})
        if STOPS.get(self.rank) == "clean":
            return self.stop()
        self.buffer.clean_low_latency_buffer(TOKENS, HIDDEN, EXPERTS)
        self.assertEqual(self.masked(), [1, 2, 3])
        self.back(self.there(), {1, 2, 3})
        self.stop()

    def stop(self):
        """No more calls of this rank but destroy, as if it had died: the others may go on for longer
        than a deadline, and need not be waited for."""
        self.buffer.destroy()
        dist.barrier()
