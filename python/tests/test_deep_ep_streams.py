# SPDX-License-Identifier: Apache-2.0
"""Which memory deep_ep's outputs get, and what waits for what, on streams of a GPU: stand-ins, so
that the CPU machine shows it."""

import contextlib
import unittest
from types import SimpleNamespace
from unittest import mock

import torch
import torch.distributed as dist

import deep_ep
import tern
from deep_ep.streams import Streams


class Stream:
    """Remembers which streams it waited for."""

    def __init__(self, *args, **options):
        self.waited = []

    def wait_stream(self, other):
        self.waited.append(other)

    wait_event = wait_stream


class Gpu:
    """torch.cuda, as far as operations ask it."""

    def __init__(self):
        self.current, self.is_capturing = Stream(), False
        self.cuda = SimpleNamespace(is_current_stream_capturing=lambda: self.is_capturing)

    @contextlib.contextmanager
    def on(self, stream):
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def patch(self):
        return mock.patch.multiple(
            torch.cuda,
            Stream=Stream,
            current_stream=lambda device=None: self.current,
            stream=self.on,
        )


class Windows(unittest.TestCase):
    def setUp(self):
        self.gpu, self.is_full = Gpu(), False
        patch = self.gpu.patch()
        patch.start()
        self.addCleanup(patch.stop)
        comm = SimpleNamespace(
            machine="cuda", device=torch.device("cpu"), torch=self.gpu, empty=self.window
        )
        self.streams = Streams(comm)
        self.event = SimpleNamespace(event=object())

    def window(self, shape, dtype):
        if self.is_full:
            raise tern.OutOfMemory("full")
        return torch.full(shape, 7, dtype=dtype)

    def is_window(self):
        return self.streams.empty((1,), torch.int32).tolist() == [7]

    def dispatch(self, stream, previous=None):
        """Whether an operation's output is in window memory."""
        with mock.patch.object(torch, "empty", torch.zeros), self.gpu.on(stream):
            with self.streams.operation(previous):
                return self.is_window()

    def test_window_memory_is_for_one_stream(self):
        """Another one's operations do not wait for the first, which may still read what it let
        go."""
        one, two = Stream(), Stream()
        with self.gpu.on(two), self.streams.operation():
            pass  # takes nothing
        self.is_full = True
        self.assertFalse(self.dispatch(two))
        self.is_full = False
        self.assertFalse(self.dispatch(one, self.event))
        self.assertTrue(self.dispatch(one))
        self.assertFalse(self.dispatch(two))
        self.assertFalse(self.dispatch(one, self.event))
        self.assertTrue(self.dispatch(one))
        self.gpu.is_capturing = True
        self.assertFalse(self.dispatch(one))

    def test_window_memory_that_is_needed(self):
        """Behind a previous event, or on another stream, its reader is waited for."""
        one, two = Stream(), Stream()
        self.assertTrue(self.dispatch(one))
        for stream, previous in ((one, self.event), (two, None)):
            with self.gpu.on(stream), self.streams.operation(previous):
                self.streams.own.waited.clear()
                self.assertTrue(self.streams.need_window())
                self.assertEqual(self.streams.own.waited, [one])
                self.assertTrue(self.is_window())
        self.assertFalse(self.dispatch(two))
        self.assertTrue(self.dispatch(one))
        self.gpu.is_capturing = True
        with self.streams.operation():
            self.assertFalse(self.streams.need_window())

    def test_operations_that_fail(self):
        """What they have issued is waited for, with an event to come, too."""
        for asynchronous in (False, True):
            stream = Stream()
            with self.assertRaisesRegex(ValueError, "half"), self.gpu.on(stream):
                with self.streams.operation(self.event, asynchronous):
                    raise ValueError("half of it is issued")
            self.assertEqual(stream.waited, [self.streams.own])

    def test_barrier_on_the_callers_stream(self):
        """It takes window memory as any operation of that stream does, and none in a graph,
        whatever the operation before it took."""
        buffer = deep_ep.ElasticBuffer(dist.group.WORLD, 2**20, explicitly_destroy=True)
        runtime, streams, taken = buffer.runtime, buffer._streams, []
        plain = runtime.empty
        runtime.empty = lambda shape, dtype: (taken.append(shape), plain(shape, dtype))[1]

        def takes(stream):
            taken.clear()
            with self.gpu.on(stream):
                buffer.barrier(use_comm_stream=False)
            return bool(taken)

        one, two = Stream(), Stream()
        takes(one)  # makes what the others need
        runtime.machine, streams.cuda, streams.own = "cuda", True, Stream()
        asked = mock.patch.object(
            torch.cuda, "is_current_stream_capturing", lambda: self.gpu.is_capturing
        )
        with asked:
            self.assertTrue(takes(one))
            self.assertFalse(takes(two))
            self.assertTrue(takes(one))
            self.gpu.is_capturing = True
            self.assertFalse(takes(one))
        runtime.machine, streams.cuda = runtime.device.type, False
        buffer.destroy()


class Ends(unittest.TestCase):
    def test_destroy_waits_for_replays(self):
        """For the device, before it tells the others that nothing runs here."""
        for kind in (deep_ep.Buffer, deep_ep.ElasticBuffer):
            for fails in (False, True):
                with self.subTest(kind=kind.__name__, fails=fails):
                    buffer, calls = kind(dist.group.WORLD, 2**20, explicitly_destroy=True), []
                    x = torch.zeros((1, 64)).bfloat16()
                    self.dispatch(buffer, x, torch.zeros((1, 1), dtype=torch.int64))
                    runtime, meet = buffer.runtime, buffer.runtime.barrier
                    runtime.barrier = lambda: (calls.append("barrier"), meet())
                    buffer._streams.cuda = True

                    def wait(device):
                        calls.append(device)
                        if fails:
                            raise RuntimeError("a fault of the device")

                    with mock.patch.object(torch.cuda, "synchronize", wait):
                        with self.assertRaises(RuntimeError) if fails else contextlib.suppress():
                            buffer.destroy()
                    self.assertEqual(calls[0], runtime.device)
                    self.assertTrue(fails or "barrier" in calls)
                    self.assertIsNone(buffer.runtime)
                    self.assertFalse(runtime.is_available())

    def dispatch(self, buffer, x, ids):
        if isinstance(buffer, deep_ep.ElasticBuffer):
            buffer.dispatch(x, ids, num_experts=1, num_max_tokens_per_rank=1)
        else:
            per_rank, _, per_expert, mask, _ = buffer.get_dispatch_layout(ids, 1)
            buffer.dispatch(x, None, per_rank, None, mask, per_expert)
