# SPDX-License-Identifier: Apache-2.0
"""deep_ep in its internode forms, with nodes of two ranks: the handle of ten, counts by node, and
rows without a word to the host, which all have the same bits as on one node."""

import unittest

import torch
import torch.distributed as dist

import deep_ep
from deep_ep import config as deep_ep_config
from world import batch

EXPERTS, TOPK, TOKENS, HIDDEN, NODE = 16, 3, 37, 256, 2
CHANNELS = 4


class Nodes(unittest.TestCase):
    def setUp(self):
        self.before, deep_ep_config.NODE_RANKS = deep_ep_config.NODE_RANKS, NODE
        self.buffer = deep_ep.Buffer(dist.group.WORLD, 2**24, 2**24, explicitly_destroy=True)
        self.rank, self.size = self.buffer.rank, self.buffer.group_size
        self.batches = [
            batch(r, TOKENS - 9 * r, HIDDEN, EXPERTS, TOPK, seed=5) for r in range(self.size)
        ]
        self.x, self.ids, self.weights = self.batches[self.rank]
        self.masks = [self.mask(ids) for _, ids, _ in self.batches]

    def tearDown(self):
        deep_ep_config.NODE_RANKS = self.before
        self.buffer.destroy()

    def mask(self, ids):
        share = EXPERTS // self.size
        ranks = [[e // share for e in row if e >= 0] for row in ids.tolist()]
        return torch.tensor([[r in row for r in range(self.size)] for row in ranks])

    def nodes(self, mask):
        return mask.view(len(mask), -1, NODE).any(2)

    def ends(self, mask):
        """[columns, channels]: rows that are set, to the end of each channel."""
        each = -(-len(mask) // CHANNELS)
        return torch.stack([mask[: (c + 1) * each].sum(0) for c in range(CHANNELS)], 1).int()

    def dispatch(self, **options):
        per_rank, per_node, per_expert, mask, _ = self.buffer.get_dispatch_layout(self.ids, EXPERTS)
        self.equal(per_node, self.nodes(self.masks[self.rank]).sum(0, dtype=torch.int32))
        return self.buffer.internode_dispatch(
            self.x,
            num_tokens_per_rank=per_rank,
            num_tokens_per_rdma_rank=per_node,
            is_token_in_rank=mask,
            num_tokens_per_expert=per_expert,
            topk_idx=self.ids,
            topk_weights=self.weights,
            config=deep_ep.Config(2 * CHANNELS, 8, 512, 16, 128),
            **options,
        )

    def equal(self, tensor, wanted, what=""):
        self.assertEqual((tensor.dtype, tensor.shape), (wanted.dtype, wanted.shape), what)
        self.assertTrue(torch.equal(tensor, wanted), f"{what}: {tensor} is not {wanted}")

    def check_handle(self, handle, num_rows):
        mine, node = self.masks[self.rank], self.rank // NODE
        counts = torch.stack([m.sum(0) for m in self.masks])[:, self.rank]
        starts = counts.cumsum(0) - counts
        begins = torch.stack([self.ends(m)[self.rank] for m in self.masks])
        begins = torch.cat([torch.zeros(self.size, 1), begins[:, :-1]], 1).int()
        peers = range(self.rank % NODE, self.size, NODE)
        forwarded = torch.stack([self.ends(self.nodes(self.masks[p]))[node] for p in peers])
        self.assertEqual(len(handle), 10)
        self.equal(handle[0], mine, "is_token_in_rank")
        self.equal(handle[1], self.ends(self.nodes(mine)), "rdma_channel_prefix_matrix")
        self.equal(handle[2], self.ends(mine), "gbl_channel_prefix_matrix")
        self.equal(handle[3], forwarded, "recv_rdma_channel_prefix_matrix")
        self.equal(handle[4], forwarded[:, -1].cumsum(0).int(), "recv_rdma_rank_prefix_sum")
        self.equal(handle[5], begins + starts.int()[:, None], "recv_gbl_channel_prefix_matrix")
        self.equal(handle[-4], counts.cumsum(0).int(), "recv_gbl_rank_prefix_sum")
        meta = handle[7].view(torch.int32)
        wanted = [
            [s // NODE, sum(2**i for i in range(NODE) if self.masks[s][t, node * NODE + i])]
            for s in range(self.size)
            for t in self.masks[s][:, self.rank].nonzero().flatten().tolist()
        ]
        self.equal(meta[: len(wanted)], torch.tensor(wanted, dtype=torch.int32).view(-1, 2), "meta")
        self.assertTrue(bool((meta[len(wanted) :] == -1).all()))
        self.assertEqual(len(meta), num_rows)
        head = torch.full((len(mine), self.size // NODE), -1, dtype=torch.int32)
        each = -(-len(mine) // CHANNELS)
        for t, n in self.nodes(mine).nonzero().tolist():
            head[t, n] = self.nodes(mine)[t // each * each : t, n].sum()
        self.equal(handle[8], head, "send_rdma_head")
        self.assertEqual(tuple(handle[9].shape), (0, NODE))

    def test_rows_and_handle(self):
        recv, ids, weights, _, handle, _ = self.dispatch()
        wanted = [x[m[:, self.rank]] for (x, _, _), m in zip(self.batches, self.masks)]
        self.equal(recv, torch.cat(wanted))
        self.check_handle(handle, len(recv))
        self.equal(self.buffer.internode_dispatch(self.x, handle=handle)[0], recv)
        self.equal(self.buffer.internode_dispatch(self.x, handle=tuple(handle))[0], recv)
        bias = torch.ones_like(self.x)
        sums, sum_weights, _ = self.buffer.internode_combine(
            recv, handle, weights, bias=(bias, bias)
        )
        ranks = self.masks[self.rank].sum(1, keepdim=True)
        wanted = self.x.float() * 0 + 2
        for i in range(self.size):
            wanted = torch.where(ranks > i, wanted + self.x.float(), wanted)
        self.equal(sums, wanted.bfloat16())
        self.equal(sum_weights, self.weights.masked_fill(self.ids < 0, 0))

    def test_worst_case_rows(self):
        exact = self.dispatch()
        most = TOKENS * self.size
        got = self.dispatch(num_worst_tokens=most)
        for tensor, wanted in zip(got[:3], exact[:3]):
            self.assertEqual(len(tensor), most)
            self.equal(tensor[: len(wanted)], wanted)
        self.assertTrue(bool((got[1][len(exact[1]) :] == -1).all()))
        self.assertEqual(got[3], [])
        self.check_handle(got[4], most)
        sums = [self.buffer.combine(all_of[0], all_of[4])[0] for all_of in (got, exact)]
        self.equal(*sums)
