# SPDX-License-Identifier: Apache-2.0
"""deep_ep with a rank that is gone: an exception names it, and the Buffer ends all the same."""

import os
import unittest

import torch
import torch.distributed as dist

import deep_ep
import tern
from world import batch

EXPERTS, TOPK, TOKENS, HIDDEN, LOST = 8, 2, 16, 64, 3


class Lost(unittest.TestCase):
    def test_lost_peer_is_named(self):
        os.environ["TERN_TIMEOUT_MS"] = "3000"
        buffer = deep_ep.Buffer(dist.group.WORLD, explicitly_destroy=True)
        x, ids, weights = batch(buffer.rank, TOKENS, HIDDEN, EXPERTS, TOPK)
        per_rank, _, per_expert, mask, _ = buffer.get_dispatch_layout(ids, EXPERTS)
        told = dict(
            num_tokens_per_rank=per_rank, is_token_in_rank=mask, num_tokens_per_expert=per_expert
        )
        rows = buffer.dispatch(x, **told, topk_idx=ids, topk_weights=weights)
        buffer.combine(rows[0], rows[4])
        dist.barrier()
        if buffer.rank == LOST:
            os._exit(0)
        with self.assertRaisesRegex(tern.Error, f"rank {LOST}") as caught:
            buffer.dispatch(x, **told, topk_idx=ids, topk_weights=weights)
        self.assertIsInstance(caught.exception, RuntimeError)
        with self.assertRaises(tern.Error):
            buffer.destroy()
        self.assertIsNone(buffer.runtime)
        with self.assertRaisesRegex(tern.BadState, "destroyed"):
            buffer.dispatch(x, handle=rows[4])
        self.assertFalse(bool(torch.isnan(rows[0].float()).any()))
