# SPDX-License-Identifier: Apache-2.0
"""deep_ep on one rank: sizes, configurations, events, memory and lifetimes, and the functions that
tests of DeepEP import."""

import contextlib
import gc
import importlib
import io
import os
import socket
import subprocess
import sys
import unittest
from math import isnan
from types import SimpleNamespace
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist

import deep_ep
import deep_ep.utils
import reference as ref
import tern
from deep_ep.utils import e4m3, math, semantic, testing
from world import DEVICE


class LikeMpi:
    Get_rank = staticmethod(lambda: 0)
    Get_size = staticmethod(lambda: 1)
    bcast = staticmethod(lambda told, root: told)
    allgather = staticmethod(lambda mine: [mine])


class Sizes(unittest.TestCase):
    def test_size_hints_are_upstreams(self):
        config = deep_ep.Buffer.get_dispatch_config
        wanted = {
            8: (335709824, 0),
            16: (377673984, 91887744),
            32: (377675264, 168023680),
            64: (377677824, 336047360),
            128: (734372864, 693096960),
            160: (944193024, 866371200),
        }
        for ranks, sizes in wanted.items():
            self.assertEqual(
                (
                    config(ranks).get_nvl_buffer_size_hint(14336, ranks),
                    config(ranks).get_rdma_buffer_size_hint(14336, ranks),
                ),
                sizes,
                ranks,
            )
        hint = deep_ep.Buffer.get_low_latency_rdma_size_hint
        self.assertEqual(hint(128, 7168, 8, 256), 1908410496)
        self.assertEqual(hint(128, 7168, 16, 288), 2146961792)
        self.assertEqual(hint(128, 2048, 8, 128), 272630912)

    def test_any_number_of_ranks_has_a_config(self):
        for ranks in (1, 3, 12, 72, 1024):
            self.assertEqual(deep_ep.Buffer.get_dispatch_config(ranks).num_sms, 20)
            deep_ep.Buffer.get_combine_config(ranks)
        self.assertEqual(deep_ep.Config(24, 8, 256).num_channels, 12)
        for wrong in ((-2,), (20, 0), (20, 256, 256), (20, 6, 256, 256, 256)):
            with self.assertRaises(AssertionError):
                deep_ep.Config(*wrong)
        with self.assertRaises(AssertionError):
            deep_ep.Buffer.set_num_sms(7)


class Objects(unittest.TestCase):
    """EP objects, which stand-ins are here: as large as asked, and as they can be."""

    def setUp(self):
        self.made = []
        patch = mock.patch.object(tern, "EP", lambda comm, **sizes: self.open(sizes))
        patch.start()
        self.addCleanup(patch.stop)

    def open(self, sizes):
        self.made.append(sizes)
        return SimpleNamespace(wait=lambda: None, close=lambda: None, bad_ids=[])

    def routes(self, ranks):
        comm = SimpleNamespace(size=ranks, machine="cpu", barrier=lambda: None)
        return deep_ep.routes.Routes(comm, 2**24)

    def plan(self, tokens, topk, is_guess):
        ids = torch.zeros((1, topk), dtype=torch.int64)
        return deep_ep.routes.Plan(256, ids, 1, 1, tokens, is_guess)

    def test_worst_cases_of_many_ranks(self):
        """num_worst_tokens stands for the tokens of a rank, which are fewer."""
        for ranks, tokens in ((8, 4096), (64, 16384), (128, 8192), (128, 2**17)):
            routes = self.routes(ranks)
            plans = [self.plan(ranks * tokens, topk, True) for topk in (8, 9, 32, 33, 64)]
            for plan in plans:
                routes.reserve(plan, 16)
                last = self.made[-1]
                self.assertLess(ranks * last["max_tokens"] * last["max_topk"], 2**31)
                self.assertTrue(min(tokens, 2**18) <= last["max_tokens"] <= 2**24)
            opened = len(self.made)
            for plan in plans:
                routes.reserve(plan, 16)
            self.assertEqual(len(self.made), opened)  # each has its room

    def test_tokens_that_are_counted(self):
        """No fewer than asked: what cannot be the object refuses, on all ranks."""
        for tokens, have in ((5000, 8192), (2**20 - 1, 2**20 - 1), (2**21 - 1, 2**21 - 1)):
            self.routes(128).reserve(self.plan(tokens, 8, False), 16)
            self.assertEqual(self.made[-1]["max_tokens"], have)


class Lifetimes(unittest.TestCase):
    def test_buffer_of_mpi_ends_by_itself(self):
        buffer = deep_ep.Buffer(None, comm=LikeMpi)
        self.assertEqual((buffer.rank, buffer.group_size, buffer.group), (0, 1, None))
        x = torch.ones(3, 64).bfloat16()
        ids, weights = torch.tensor([[0], [1], [-1]]), torch.ones(3, 1)
        layout = buffer.get_dispatch_layout(ids, 2)
        rows = buffer.dispatch(x, None, layout[0], layout[1], layout[3], layout[2], ids, weights)
        self.assertEqual(rows[3], [1, 1])
        self.assertEqual(buffer.combine(rows[0], rows[4])[0].sum(1).tolist(), [64, 64, 0])
        del buffer
        gc.collect()
        with self.assertRaises(ValueError):
            deep_ep.Buffer(None)

    def test_destroy(self):
        buffer = deep_ep.Buffer(dist.group.WORLD, explicitly_destroy=True)
        handle = buffer.dispatch(
            torch.ones(1, 64).bfloat16(),
            num_tokens_per_rank=torch.ones(1, dtype=torch.int32),
            is_token_in_rank=torch.ones(1, 1, dtype=torch.bool),
            num_tokens_per_expert=torch.ones(1, dtype=torch.int32),
        )[4]
        buffer.destroy()
        buffer.destroy()
        self.assertEqual(handle[0].tolist(), [[1]])  # its tensors live
        with self.assertRaises(tern.BadState):
            buffer.dispatch(torch.ones(1, 64).bfloat16(), handle=handle)
        early = deep_ep.Buffer(dist.group.WORLD)
        runtime = early.runtime
        self.assertEqual((runtime.get_num_rdma_ranks(), runtime.get_rdma_rank()), (1, 0))
        self.assertEqual(runtime.get_local_device_id(), early._comm().place[1])
        self.assertIs(runtime.get_comm_stream(), early.get_comm_stream())
        self.assertEqual((runtime.is_available(), runtime.is_internode_available()), (True, False))
        early.destroy()
        self.assertFalse(runtime.is_available())
        self.assertIsNone(early.runtime)
        told = io.StringIO()
        with contextlib.redirect_stderr(told):
            forgotten = deep_ep.Buffer(dist.group.WORLD, explicitly_destroy=True)
            del forgotten
            gc.collect()
        self.assertIn("without destroy()", told.getvalue())

    def test_local_memory(self):
        buffer = deep_ep.Buffer(dist.group.WORLD, num_nvl_bytes=4096, num_rdma_bytes=1024)
        mine = buffer.get_local_buffer_tensor(torch.int8)
        self.assertEqual(mine.numel(), 4096)
        mine.zero_()
        part = buffer.get_local_buffer_tensor(torch.float32, torch.Size([2, 3]), offset=8)
        part.fill_(1)
        self.assertEqual(mine.view(torch.float32)[:9].tolist(), [0, 0] + [1] * 6 + [0])
        other = buffer.get_local_buffer_tensor(torch.int64, use_rdma_buffer=True)
        self.assertEqual(other.numel(), 128)
        with self.assertRaises(AssertionError):
            buffer.get_local_buffer_tensor(torch.int8, torch.Size([4097]))
        self.assertEqual(buffer.get_comm_stream() is None, DEVICE == "cpu")
        self.assertEqual(
            deep_ep.Buffer.is_sm90_compiled(),
            not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] >= 9,
        )


class Events(unittest.TestCase):
    def test_overlap(self):
        calls = []
        overlap = deep_ep.Buffer.capture()
        overlap.register_hook_after_wait(lambda: calls.append(1))
        with overlap(True) as same:
            self.assertIs(same, overlap)
            self.assertEqual(calls, [])
        self.assertEqual(calls, [1])
        self.assertIsNone(overlap.event)
        with self.assertRaisesRegex(AssertionError, "not async"):
            overlap.current_stream_wait()
        kept = deep_ep.EventOverlap(deep_ep.EventHandle(), (torch.ones(1),))
        kept.current_stream_wait()
        kept.current_stream_wait()
        self.assertEqual(len(kept.extra_tensors), 1)
        self.assertIs(deep_ep.utils.EventOverlap, deep_ep.EventOverlap)
        self.assertIs(deep_ep.utils.EventHandle, deep_ep.EventHandle)

    def test_allocation_needs_both(self):
        buffer = deep_ep.Buffer(dist.group.WORLD)
        with self.assertRaisesRegex(AssertionError, "needs previous_event and async_finish"):
            buffer.get_dispatch_layout(
                torch.zeros((1, 1), dtype=torch.int64), 1, allocate_on_comm_stream=True
            )


# As programs that test DeepEP begin: a process group by init_dist, which makes BF16 the default
# type.
PROGRAM = """
import sys
import torch, deep_ep
from deep_ep.utils.envs import dist_print, get_global_seed, get_local_seed, init_dist
from deep_ep.utils.math import calc_diff, per_token_cast_back, per_token_cast_to_fp8
rank, size, group = init_dist(int(sys.argv[1]), 2, seed=5)
assert torch.get_default_dtype() == torch.bfloat16 and get_global_seed() == 5
deep_ep.Buffer.get_low_latency_rdma_size_hint(8, 512, size, 4)
buffer = deep_ep.Buffer(group, 2**24, explicitly_destroy=True)
x, ids, weights = torch.randn(8, 512), torch.arange(16).view(8, 2) % 4, torch.ones(8, 2).float()
told = dict(zip(("num_tokens_per_rank", "num_tokens_per_rdma_rank", "num_tokens_per_expert",
                 "is_token_in_rank"), buffer.get_dispatch_layout(ids, 4)))
recv, _, got, _, handle, _ = buffer.dispatch(per_token_cast_to_fp8(x), **told, topk_idx=ids,
                                             topk_weights=weights)
list(handle)
sums, home, _ = buffer.combine(per_token_cast_back(*recv), handle, got)
times = told["is_token_in_rank"].sum(1, keepdim=True)
assert calc_diff(sums, x * times) < 1e-3 and torch.equal(home, weights)
(rows, scales), _, handle, _, _ = buffer.low_latency_dispatch(x, ids, 8, 4)
rows = per_token_cast_back(rows.view(-1, 512), scales.reshape(-1, 4)).view(rows.shape)
sums, _, _ = buffer.low_latency_combine(rows, ids, weights, handle)
assert calc_diff(sums, 2 * x) < 1e-3
dist_print(f"seed {get_local_seed()}", once_in_node=True)
buffer.destroy()
"""


class Programs(unittest.TestCase):
    def test_init_dist(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        places = dict(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE="1", RANK="0")
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(rank)],
                env={**os.environ, **places, "TERN_MACHINE": "cpu"},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        told = [rank.communicate(timeout=100)[0] for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [0, 0])
        self.assertEqual(told, ["seed 5000015\n", ""])


class Utils(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(1)

    def test_eight_bit_floats(self):
        x = torch.randn(9, 300).bfloat16()
        codes, scales = math.per_token_cast_to_fp8(x)
        self.assertEqual((tuple(codes.shape), tuple(scales.shape)), ((9, 300), (9, 3)))
        for row, have, scale in zip(x.float().numpy(), codes.view(torch.uint8), scales):
            wanted, wanted_scale = ref.fp8(row)
            self.assertEqual(have.tolist(), wanted.tolist())
            self.assertEqual(scale.tolist(), wanted_scale.tolist())
        self.assertLess(math.calc_diff(math.per_token_cast_back(codes, scales), x), 1e-3)
        every = torch.arange(256, dtype=torch.uint8)
        numbers = every[(every & 127) != 127]
        back = e4m3.encode(e4m3.decode(numbers))
        self.assertEqual(back.view(torch.uint8).tolist(), numbers.tolist())
        self.assertTrue(bool(e4m3.decode(every[127:128]).isnan().all()))
        packed = torch.tensor([[127 | 128 << 8 | 126 << 16 | 127 << 24]], dtype=torch.int32)
        ones = e4m3.encode(torch.ones(1, 512))
        self.assertEqual(math.per_token_cast_back(ones, packed)[0, ::128].tolist(), [1, 2, 0.5, 1])

    def test_figures(self):
        x = torch.randn(64)
        self.assertEqual(math.calc_diff(x, x), 0)
        self.assertGreater(math.calc_diff(x, -x), 0.01)
        self.assertEqual((math.ceil_div(7, 4), math.align(7, 4), math.safe_div(0, 0)), (2, 8, 0))
        with self.assertRaises(ZeroDivisionError):
            math.safe_div(1, 0)
        self.assertEqual(math.count_bytes(x, (None, [x.bfloat16()])), 384)
        shuffled = x[torch.randperm(64)]
        self.assertEqual(math.hash_tensor(shuffled.double()), math.hash_tensor(x.double()))
        self.assertNotEqual(math.hash_tensor(x), math.hash_tensor(x + 1))
        self.assertNotEqual(math.hash_tensor(x[1:3]), math.hash_tensor(x[2:4]))
        self.assertEqual(math.hash_tensors(x, [None, (x,)]), 0)
        scores = math.create_grouped_scores(torch.ones(2, 6), torch.tensor([[0], [2]]), 3)
        self.assertEqual(scores.tolist(), [[1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1]])

    def test_words_of_python(self):
        class Holder:
            calls = 0

            @semantic.weak_lru(maxsize=None)
            def double(self, x):
                self.calls += 1
                return 2 * x

        holder = Holder()
        self.assertEqual([holder.double(3), holder.double(3), holder.calls], [6, 6, 1])
        self.assertEqual((semantic.value_or(None, 1), semantic.value_or(0, 1)), (0 or 1, 0))

    def test_bench(self):
        calls = []
        mean, least, most = testing.bench(lambda: calls.append(np.ones(9).sum()), 2, 5)
        self.assertEqual(len(calls), 7)
        self.assertTrue(0 <= least <= mean <= most)
        if not torch.cuda.is_available():
            with self.assertRaisesRegex(RuntimeError, "there is none"):
                testing.bench_kineto(lambda: None, "dispatch")

    def test_kernels_by_name(self):
        """Of profiles as torch has them: three calls of two dispatches and a combine each, behind a
        barrier that is a dispatch."""

        def profile(*kernels):
            ranges = [
                SimpleNamespace(start=i, elapsed_us=lambda us=us: us)
                for i, (_, us) in enumerate(kernels)
            ]
            events = [SimpleNamespace(name=n, time_range=r) for (n, _), r in zip(kernels, ranges)]
            return SimpleNamespace(events=lambda: events[::-1])

        calls = profile(*[("dispatch", 9), ("dispatch", 1), ("dispatch", 2), ("combine", 4)] * 3)
        barrier = profile(("dispatch", 9))

        def of(name, period=1):
            return testing._of(calls, name, period, 3, barrier)

        self.assertAlmostEqual(of("dispatch_impl") * 1e6, 3)
        self.assertAlmostEqual(of("combine_impl") * 1e6, 4)
        self.assertAlmostEqual(of("barrier") * 1e6, 4)
        self.assertEqual([round(t * 1e6) for t in of("dispatch", 3)], [9, 1, 2])
        self.assertTrue(isnan(of("dispatch_copy_epilogue_impl")))
        self.assertEqual([isnan(t) for t in of("notify", 2)], [True, True])
        with self.assertRaisesRegex(AssertionError, "no kernel"):
            of("gather")

    def test_modules_of_every_version(self):
        for module, name in (
            ("deep_ep._C", "Config"),
            ("deep_ep._C", "EventHandle"),
            ("deep_ep_cpp", "Config"),
            ("deep_ep.buffers", "ElasticBuffer"),
            ("deep_ep.buffers.elastic", "EPHandle"),
            ("deep_ep.buffers.legacy", "Buffer"),
        ):
            have = getattr(importlib.import_module(module), name)
            self.assertIs(have, getattr(deep_ep, name))
