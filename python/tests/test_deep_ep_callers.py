# SPDX-License-Identifier: Apache-2.0
"""deep_ep called as serving and training frameworks call it: by their names of arguments, in their
order of calls."""

import unittest

import numpy as np
import torch
import torch.distributed as dist

import deep_ep
from deep_ep.utils import EventHandle, EventOverlap
from deep_ep.utils.math import calc_diff
from world import batch

EXPERTS, TOPK, TOKENS, HIDDEN = 8, 2, 20, 256


class _Dispatch(torch.autograd.Function):
    """As training does it: the backward pass of dispatch is combine, with the gradient of the
    weights."""

    @staticmethod
    def forward(ctx, x, ids, weights, num_experts, buffer):
        previous = EventOverlap(EventHandle())
        per_rank, per_node, per_expert, mask, event = buffer.get_dispatch_layout(
            ids,
            num_experts,
            previous_event=previous,
            async_finish=True,
            allocate_on_comm_stream=True,
        )
        recv, recv_ids, recv_weights, counts, handle, event = buffer.dispatch(
            x,
            topk_idx=ids,
            topk_weights=weights,
            num_tokens_per_rank=per_rank,
            num_tokens_per_rdma_rank=per_node,
            is_token_in_rank=mask,
            num_tokens_per_expert=per_expert,
            previous_event=event,
            async_finish=True,
            allocate_on_comm_stream=True,
        )
        event.current_stream_wait()
        ctx.buffer, ctx.handle = buffer, handle
        ctx.mark_non_differentiable(recv_ids)
        return recv, recv_ids, recv_weights, torch.tensor(counts), handle

    @staticmethod
    def backward(ctx, rows, ids, weights, counts, handle):
        x, home, event = ctx.buffer.combine(
            rows.contiguous(),
            ctx.handle,
            topk_weights=weights.float(),
            previous_event=EventOverlap(EventHandle()),
            async_finish=True,
            allocate_on_comm_stream=True,
        )
        event.current_stream_wait()
        return x, None, home, None, None


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, handle, buffer):
        sums, _, _ = buffer.combine(x, handle=handle)
        ctx.buffer, ctx.handle = buffer, handle
        return sums

    @staticmethod
    def backward(ctx, sums):
        rows, _, _, _, _, _ = ctx.buffer.dispatch(sums.contiguous(), handle=ctx.handle)
        return rows, None, None


class Callers(unittest.TestCase):
    def buffer(self, **options):
        return deep_ep.Buffer(group=dist.group.WORLD, explicitly_destroy=True, **options)

    def inputs(self, rank):
        return batch(rank, TOKENS, HIDDEN, EXPERTS, TOPK, seed=21)

    def test_training_step(self):
        """Two layers forward, then both backward, against the same experts without ranks."""
        buffer = self.buffer(num_nvl_bytes=2**24, num_rdma_bytes=0)
        share = EXPERTS // buffer.group_size
        x, ids, weights = self.inputs(buffer.rank)

        def experts(rows, local, by, first):
            gain = 1 + (first + torch.arange(share)) / 4  # of each expert
            scale = torch.where(local >= 0, gain[local.clamp(min=0)] * by, torch.zeros(()))
            return (rows.float() * scale.sum(1, keepdim=True)).bfloat16()

        mine, by = x.clone().requires_grad_(), weights.clone().requires_grad_()
        y = mine
        for _ in range(2):
            rows, local, row_weights, _, handle = _Dispatch.apply(y, ids, by, EXPERTS, buffer)
            rows = experts(rows, local, row_weights, buffer.rank * share)
            y = _Combine.apply(rows, handle, buffer)
        y.float().pow(2).sum().backward()

        dense, dense_by = x.double().requires_grad_(), weights.double().requires_grad_()
        gain = torch.where(ids >= 0, 1 + ids.clamp(min=0) / 4, torch.zeros(())).double()
        z = dense
        for _ in range(2):
            z = z * (gain * dense_by).sum(1, keepdim=True)
        z.pow(2).sum().backward()
        self.assertLess(calc_diff(y.detach(), z.detach()), 1e-4)
        self.assertLess(calc_diff(mine.grad, dense.grad), 1e-4)
        there = ids >= 0
        self.assertLess(calc_diff(by.grad[there], dense_by.grad[there]), 1e-4)
        buffer.destroy()

    @torch.inference_mode()  # as serving runs
    def test_serving_prefill(self):
        deep_ep.Buffer.set_num_sms(20)
        buffer = self.buffer(
            num_nvl_bytes=2**24, num_rdma_bytes=0, low_latency_mode=False, num_qps_per_rank=1
        )
        x, ids, weights = self.inputs(buffer.rank)
        previous = buffer.capture()
        per_rank, per_node, per_expert, mask, event = buffer.get_dispatch_layout(
            topk_idx=ids,
            num_experts=EXPERTS,
            previous_event=previous,
            async_finish=False,
            allocate_on_comm_stream=False,
        )
        recv, recv_ids, recv_weights, counts, handle, event = buffer.dispatch(
            x=x,
            handle=None,
            num_tokens_per_rank=per_rank,
            num_tokens_per_rdma_rank=per_node,
            is_token_in_rank=mask,
            num_tokens_per_expert=per_expert,
            topk_idx=ids,
            topk_weights=weights,
            expert_alignment=1,
            config=deep_ep.Buffer.get_dispatch_config(buffer.group_size),
            previous_event=previous,
            async_finish=True,
            allocate_on_comm_stream=False,
        )
        if event.event is not None:
            event.current_stream_wait()
        self.assertEqual(sum(counts), int((recv_ids >= 0).sum()))
        sums, _, event = buffer.combine(
            x=recv,
            handle=handle,
            topk_weights=None,
            config=deep_ep.Buffer.get_combine_config(buffer.group_size),
            previous_event=previous,
            async_finish=False,
            allocate_on_comm_stream=False,
        )
        self.assertIsNone(event.event)
        self.assertLess(calc_diff(sums, x * mask.sum(1, keepdim=True)), 1e-5)
        buffer.destroy()

    @torch.inference_mode()
    def test_serving_decode(self):
        size = dist.get_world_size()
        num_bytes = deep_ep.Buffer.get_low_latency_rdma_size_hint(
            num_max_dispatch_tokens_per_rank=TOKENS,
            hidden=HIDDEN,
            num_ranks=size,
            num_experts=EXPERTS,
        )
        buffer = self.buffer(
            num_nvl_bytes=2**20,
            num_rdma_bytes=num_bytes,
            low_latency_mode=True,
            num_qps_per_rank=EXPERTS // size,
            allow_nvlink_for_low_latency_mode=True,
            allow_mnnvl=False,
            enable_shrink=False,
        )
        self.assertTrue(buffer.low_latency_mode)
        buffer.clean_low_latency_buffer(TOKENS, HIDDEN, EXPERTS)
        x, ids, weights = self.inputs(buffer.rank)
        rows, counts, handle, event, hook = buffer.low_latency_dispatch(
            x,
            ids,
            TOKENS,
            EXPERTS,
            use_fp8=False,
            round_scale=False,
            use_ue8m0=False,
            async_finish=False,
            return_recv_hook=True,
        )
        hook()
        out = torch.empty_like(x)
        sums, event, hook = buffer.low_latency_combine(
            rows,
            ids,
            weights,
            handle,
            async_finish=False,
            zero_copy=False,
            return_recv_hook=True,
            out=out,
        )
        hook()
        by = weights.masked_fill(ids < 0, 0).sum(1, keepdim=True)
        self.assertLess(calc_diff(out, x.float() * by), 1e-5)
        self.assertTrue(np.isfinite(sums.float().numpy()).all())
        buffer.destroy()

    def test_groups_of_ranks_and_several_buffers(self):
        """Two groups of half the ranks each, and a buffer of all, at the same time."""
        size, rank = dist.get_world_size(), dist.get_rank()
        halves = [list(range(size // 2)), list(range(size // 2, size))]
        groups = [dist.new_group(half) for half in halves]
        group = groups[rank // (size // 2)]
        half = deep_ep.Buffer(group, 2**24, explicitly_destroy=True)
        whole = self.buffer()
        self.assertEqual((half.rank, half.group_size), (rank % (size // 2), size // 2))
        self.assertIs(half.group, group)
        x, ids, weights = self.inputs(rank)
        for buffer in (half, whole, half):
            per_rank, _, per_expert, mask, _ = buffer.get_dispatch_layout(ids, EXPERTS)
            recv, _, got, _, handle, _ = buffer.dispatch(
                x,
                num_tokens_per_rank=per_rank,
                is_token_in_rank=mask,
                num_tokens_per_expert=per_expert,
                topk_idx=ids,
                topk_weights=weights,
            )
            sums, home, _ = buffer.combine(recv, handle, got)
            self.assertLess(calc_diff(sums, x * mask.sum(1, keepdim=True)), 1e-5)
            self.assertTrue(torch.equal(home, weights.masked_fill(ids < 0, 0)))
            rows, _, handle, _, _ = buffer.low_latency_dispatch(
                x, ids, TOKENS, EXPERTS, use_fp8=False
            )
            sums, _, _ = buffer.low_latency_combine(rows, ids, weights, handle)
            by = weights.masked_fill(ids < 0, 0).sum(1, keepdim=True)
            self.assertLess(calc_diff(sums, x.float() * by), 1e-5)
        half.destroy()
        whole.destroy()
