# SPDX-License-Identifier: Apache-2.0
"""A peer that is lost becomes an exception that names it, and the others go on."""

import os
import time

import torch

import tern
from world import RankTest, batch

EXPERTS, TOPK, TOKENS, HIDDEN = 12, 2, 16, 64
LOST, DEADLINE_MS = 3, 3000


class Lost(RankTest):
    options = {"heap_bytes": 2**24}

    def test_lost_peer_is_named_and_left_behind(self):
        ep = tern.EP(
            self.comm,
            num_experts=EXPERTS,
            max_topk=TOPK,
            max_tokens=TOKENS,
            hidden=HIDDEN,
            ll_tokens=TOKENS,
            ll_hidden=HIDDEN,
            timeout_ms=DEADLINE_MS,
        )
        x, ids, weights = batch(self.rank, TOKENS, HIDDEN, EXPERTS, TOPK)
        route = ep.route(ids)
        rows = route.dispatch(x)
        self.comm.barrier()
        if self.rank == LOST:
            os._exit(0)
        begin = time.monotonic()
        with self.assertRaises((tern.Timeout, tern.Disconnected)) as caught:
            route.combine(rows)
            ep.synchronize()  # on GPUs the call itself waits for nobody
        self.assertLess(time.monotonic() - begin, 10 * DEADLINE_MS / 1000)
        fault = caught.exception.fault
        self.assertEqual(fault.peer, LOST)
        self.assertIn(f"rank {LOST}", str(caught.exception))
        self.assertEqual((ep.fault.peer, ep.fault.status), (LOST, caught.exception.status))
        with self.assertRaises(type(caught.exception)):  # until it is reset
            ep.synchronize()
        ep.close()
        shrunk, old = self.comm.shrink()
        self.assertEqual((shrunk.size, old), (3, [0, 1, 2]))
        with tern.EP(
            shrunk, num_experts=EXPERTS, max_topk=TOPK, max_tokens=TOKENS, hidden=HIDDEN
        ) as ep:
            route = ep.route(ids)
            home = route.combine(route.dispatch(x)).x
            ranks = [len({int(e) // 4 for e in row if e >= 0}) for row in ids]
            self.assertTrue(bool((home == x * torch.tensor(ranks)[:, None]).all()))
            shrunk.barrier()
        shrunk.close()
