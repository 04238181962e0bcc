# SPDX-License-Identifier: Apache-2.0
"""Arguments that are refused, each with a sentence that has its value; one rank."""

import os
import socket
import subprocess
import sys
import threading
from unittest import mock

import numpy as np
import torch

import tern
from tern import _tern
from world import RankTest


class Arguments(RankTest):
    options = {"heap_bytes": 2**22}

    def setUp(self):
        super().setUp()
        self.ep = tern.EP(
            self.comm, num_experts=4, max_topk=2, max_tokens=8, hidden=64, ll_tokens=8, ll_hidden=64
        )
        self.place = self.comm.device
        self.x = torch.ones(4, 64).bfloat16()
        self.ids = torch.tensor([[0, 1], [2, 3], [1, -1], [3, 0]])
        self.weights = torch.full((4, 2), 0.5)

    def tearDown(self):
        self.ep.close()
        super().tearDown()

    def refused(self, sentence, call, *args, kind=tern.InvalidArgument, **keywords):
        with self.assertRaisesRegex(kind, sentence) as caught:
            call(*args, **keywords)
        return caught.exception

    def route_and_wait(self, ids):
        """On a GPU faults are told when the object is waited for."""
        self.ep.route(ids)
        self.ep.synchronize()

    def test_routes(self):
        self.refused(
            rf"topk_idx is float32 \[4, 2\] on {self.place}: it must be int64 or int32 "
            rf"\[tokens, topk\] on {self.place}, dense",
            self.ep.route,
            self.weights,
        )
        self.refused(
            rf"topk_idx is int64 \[2, 4\] on {self.place} with strides \[1, 2\]", self.ep.route, self.ids.t()
        )
        self.refused(rf"topk_idx is int64 \[8\] on {self.place}", self.ep.route, self.ids.reshape(-1))
        self.refused(r"topk_idx is a list: it must be a tensor", self.ep.route, [[0]])
        self.refused(
            r"layout is 'row': it must be one of 'rank', 'expert'",
            self.ep.route,
            self.ids,
            layout="row",
        )
        self.refused(
            r"expert_alignment is 0: it must be a number from 1",
            self.ep.route,
            self.ids,
            expert_alignment=0,
        )
        self.refused(
            r"\b9\b", self.ep.route, torch.zeros(9, 2, dtype=torch.int64)
        )  # the library's own sentence

    def test_dispatch_and_combine(self):
        route = self.ep.route(self.ids)
        self.refused(
            rf"x is bfloat16 \[3, 64\] on {self.place}: it must be bfloat16 \[4, columns\]",
            route.dispatch,
            self.x[:3],
        )
        self.refused(
            rf"x is float32 \[4, 64\] on {self.place}: it must be bfloat16",
            route.dispatch,
            self.x.float(),
            cast="fp8",
        )
        self.refused(r"x\[1\] is float32 \[3, 1\]", route.dispatch, (self.x, torch.ones(3, 1)))
        turned = torch.ones(64, 4).bfloat16().t()
        side = (
            rf"x is bfloat16 \[4, 64\] on {self.place} with strides \[1, 4\]: a token's channels "
            r"must lie side by side; give x\.contiguous\(\)"
        )
        self.refused(side, route.dispatch, turned)
        self.refused(side, route.dispatch, turned, cast="fp8")
        self.refused(side, route.dispatch, (turned, torch.ones(4, 1)))
        self.refused("side by side", route.dispatch, torch.ones(4, 128).bfloat16()[:, ::2])
        self.refused(side, route.dispatch, turned.clone().requires_grad_())
        self.refused(
            r"topk_weights is float64 \[4, 2\]", route.dispatch, self.x, self.weights.double()
        )
        self.refused(
            r"cast is 'fp4': it must be one of None, 'fp8'", route.dispatch, self.x, cast="fp4"
        )
        self.refused(
            r"num_rows is -1: it must be a number from 0", route.dispatch, self.x, num_rows=-1
        )
        self.refused(r"num_sms is -2, which is no number", route.dispatch, self.x, num_sms=-2)
        rows = route.dispatch(self.x, self.weights)
        self.refused(r"x is float32 \[4, 64\]", route.combine, rows.x.float())
        self.refused(r"weights is float32 \[4, 1\]", route.combine, rows.x, torch.ones(4, 1))
        self.refused(r"bias is bfloat16 \[3, 64\]", route.combine, rows.x, bias=self.x[:3])
        self.refused(
            r"3 biases: combine adds one or two", route.combine, rows.x, bias=(self.x,) * 3
        )
        self.refused(
            r"out is bfloat16 \[4, 32\]", route.combine, rows.x, out=torch.ones(4, 32).bfloat16()
        )
        out = self.x.clone()
        self.refused(
            r"out, 512 bytes at 0x[0-9a-f]+, overlaps bias\[0\], 512 bytes at ",
            route.combine,
            rows.x,
            bias=out,
            out=out,
        )
        self.assertTrue(torch.equal(route.combine(rows).x, self.x))

    def test_low_latency(self):
        call = self.ep.ll_dispatch
        self.refused(r"x is float32 \[4, 64\]", call, self.x.float(), self.ids)
        self.refused(
            rf"topk_idx is int64 \[3, 2\] on {self.place}: it must be int64 or int32 \[4, topk\]",
            call,
            self.x,
            self.ids[:3],
        )
        self.refused(
            r"max_tokens is 9: it must be a number from 1 to 8",
            call,
            self.x,
            self.ids,
            max_tokens=9,
        )
        self.refused(r"layout is 'token'", call, self.x, self.ids, layout="token")
        self.refused(r"weights is 'none'", call, self.x, self.ids, weights="none")
        self.refused(
            r"sum_counts is int64 \[3\]",
            call,
            self.x,
            self.ids,
            sum_counts=torch.zeros(3, dtype=torch.int64),
        )
        self.refused(r"\b7\b", call, self.x, self.ids, lane=7)
        got = call(self.x, self.ids)
        self.refused(r"y is bfloat16 \[4, 64\]", self.ep.ll_combine, got, self.x, self.weights)
        self.refused(r"topk_weights is None", self.ep.ll_combine, got, got.x)
        self.refused(
            r"compression is 'zip'", self.ep.ll_combine, got, got.x, self.weights, compression="zip"
        )

    def test_what_was_checked_is_checked_again(self):
        """A low-latency dispatch looks up what an earlier one of its shape has prepared."""
        call = self.ep.ll_dispatch
        args, words = (self.x, self.ids, self.weights), {"layout": "rank", "weights": "dispatch"}
        call(*args, **words)
        for i, name in enumerate(("x", "topk_idx", "topk_weights")):
            given = list(args)
            given[i] = given[i].t().contiguous().t()
            self.refused(rf"{name} is .* with strides \[1, 4\]", call, *given, **words)
        self.refused(r"layout is \['expert'\]", call, self.x, self.ids, layout=["expert"])
        self.refused(r"max_tokens is True", call, self.x, self.ids, max_tokens=True)
        leaf = self.x.clone().requires_grad_()
        self.refused(r"x requires a gradient", call, leaf, self.ids, kind=tern.Unsupported)
        for n in range(600):  # more shapes than are kept
            self.ep.plans[n] = None
        self.assertEqual(call(self.x[:1], self.ids[:1]).num_tokens, 1)
        self.assertEqual(len(self.ep.plans), 1)

    def test_dispatches_of_one_shape(self):
        """Share a plan; what can differ among them is checked again."""
        route = self.ep.route(self.ids)
        first = route.dispatch(self.x, self.weights)
        num = len(self.ep.plans)
        other = torch.arange(256.0).reshape(4, 64).bfloat16()
        route.update(self.ids.clone())
        second = route.dispatch(other, self.weights)
        self.assertEqual(len(self.ep.plans), num)
        self.assertTrue(torch.equal(first.x, self.x) and torch.equal(second.x, other))
        call = route.dispatch
        turned = self.weights.t().contiguous().t()
        self.refused(r"topk_weights is .* with strides \[1, 4\]", call, self.x, turned)
        self.refused(r"topk_weights is float64", call, self.x, self.weights.double())
        self.refused(r"num_sms is -1, which is no number", call, self.x, num_sms=-1)
        wide = torch.cat([other, other + 1], 1)
        for _ in range(2):  # rows with a stride, and a second payload whose elements have one
            self.assertTrue(torch.equal(call(wide[:, 64:]).x, other + 1))
            for second in (wide[:, ::8], wide[:, 64:80]):
                rows = call((other[:, :48].contiguous(), second))
                self.assertTrue(torch.equal(rows.x[1], second))
        self.assertTrue(torch.equal(call(other).x, other))
        route.update(self.ids[:3])
        self.refused(r"x is bfloat16 \[4, 64\] .*\[3, columns\]", call, self.x, self.weights)
        self.assertTrue(torch.equal(call(other[:3], self.weights[:3]).x, other[:3]))
        for n in range(600):  # more shapes than are kept
            self.ep.plans[n] = None
        self.assertTrue(torch.equal(call(other[:3, :32].contiguous()).x, other[:3, :32]))
        self.assertEqual(len(self.ep.plans), 1)

    def test_outputs_that_do_not_all_fit(self):
        """Those that did are given back."""
        route = self.ep.route(self.ids)
        held, size = [], 2**20
        while size >= 256:
            try:
                held.append(self.comm.empty((size,), torch.uint8))
            except tern.OutOfMemory:
                size //= 2
        size = len(held.pop())
        rows = size // 128
        more = r"no window of .* \(heap_bytes sets .*, heap_max_bytes what comm\.grow\(\) can make of it\)"
        self.refused(more, route.dispatch, self.x, num_rows=rows, kind=tern.OutOfMemory)
        self.refused(more, self.comm.empty, (2**23,), torch.uint8, kind=tern.OutOfMemory)
        with tern.Communicator(
            tern.create_id(), 0, 1, machine="cpu", heap_bytes=2**20, heap_max_bytes=2**22
        ) as comm:
            more = r"no window of .* \(comm\.grow\(\) on every rank can add \d+\)$"
            self.refused(more, comm.empty, (2**21,), torch.uint8, kind=tern.OutOfMemory)
            comm.grow(2**21)
            self.assertEqual(len(comm.empty((2**21,), torch.uint8)), 2**21)
        self.assertEqual(len(route.dispatch(self.x, num_rows=rows, topk_idx=False).x), rows)
        self.assertEqual(len(self.comm.empty((size,), torch.uint8)), size)

    def test_short_cuts_of_torch(self):
        """With and without them an operation gets the same tensors, and the stream of its GPU."""
        words = [{}, {"cast": "fp8"}, {"cast": "fp8_ue8m0"}]
        words += [{"layout": "rank", "weights": "dispatch", "cast": cast} for cast in (None, "fp8")]
        self.ep.close()
        self.ep = tern.EP(self.comm, num_experts=4, max_topk=2, ll_tokens=8, ll_hidden=640)
        x, short = torch.ones(4, 640).bfloat16(), self.comm._fast_empty
        for given in words:
            weights = self.weights if "weights" in given else None
            forms = []
            for cut in (short, None):
                self.comm._fast_empty = cut
                batch = self.ep.ll_dispatch(x, self.ids, weights, **given)
                y = torch.ones(batch.x.shape).bfloat16()
                sums, _ = self.ep.ll_combine(batch, y, self.weights if weights is None else None)
                made = (batch.x, batch.scales, batch.counts, batch.ranges, batch.source)
                made += (batch.topk_idx, batch.topk_weights, sums)
                forms.append([t if t is None else (t.shape, t.stride(), t.dtype) for t in made])
                for tensor in made:
                    self.assertTrue(tensor is None or tensor._version == 0)
            self.assertEqual(*forms)
            if batch.scales is not None:
                self.assertEqual(batch.scales.stride()[-2:], (1, 8))
        self.comm._fast_empty = short
        comm = tern.Communicator.__new__(tern.Communicator)
        comm._stream, comm._raw, comm.machine = None, None, "cuda"
        comm.place, comm.device, comm._fast_empty = (2, 1), torch.device("cuda", 1), short
        comm._current_stream, comm._current_device = (lambda index: 70 + index), (lambda: 1)
        self.assertEqual((comm.stream(), comm.fast_empty()), (71, short))
        comm._current_stream, comm._current_device, comm._fast_empty = None, (lambda: 0), max
        with mock.patch("torch.cuda.current_stream") as current:
            current.return_value.cuda_stream = 81
            self.assertEqual((comm.stream(), comm.fast_empty()), (81, None))
            current.assert_called_once_with(torch.device("cuda", 1))

    def test_values_that_are_not_a_calls(self):
        raw, stream = self.ep.raw, self.comm.stream()
        for call, values in (
            (raw.ll_combine, ()),
            (raw.ll_combine, (stream, 0)),
            (raw.ll_combine, (stream,) + (0,) * 9),
            (raw.ll_dispatch, (stream,)),
            (raw.ll_dispatch, (stream, raw.ll_dispatch_args(topk=2), 0)),
            (raw.ll_dispatch, (stream, 5)),
        ):
            with self.assertRaises(TypeError):
                call(*values)
        self.refused("what is prepared has 3 bytes", raw.ll_dispatch, stream, b"abc")

    def test_operations_that_are_left_out(self):
        """As tern.host_cost measures: checks and tensors, and nothing moves."""
        route = self.ep.route(self.ids)
        rows, out = route.dispatch(self.x), torch.full((4, 64), 5.0).bfloat16()
        _tern.measure(2)
        try:
            self.refused(r"x is float32 \[4, 64\]", route.combine, rows.x.float())
            route.combine(rows, out=out)
            self.ep.ll_dispatch(self.x, self.ids)
        finally:
            _tern.measure(0)
        self.assertTrue(bool((out == 5).all()))
        route.combine(rows, out=out)
        self.assertTrue(torch.equal(out, self.x))
        before = _tern.spent()
        _tern.measure(1)
        try:
            route.combine(rows)
        finally:
            _tern.measure(0)
        after = _tern.spent()
        self.assertGreater(after, before)
        route.combine(rows)
        self.assertEqual(_tern.spent(), after)

    def test_objects(self):
        self.refused(
            r"num_experts is -4, which is no number", tern.EP, self.comm, num_experts=-4, max_topk=2
        )
        self.refused(
            r"num_sms is 4294967296, which is no number",
            tern.EP,
            self.comm,
            num_experts=4,
            max_topk=2,
            num_sms=2**32,
        )
        self.refused(
            r"hidden is '64': it must be a number",
            tern.EP,
            self.comm,
            num_experts=4,
            max_topk=2,
            hidden="64",
        )
        self.refused(
            r"hidden is 100: it must be a multiple of 8 \(rows are multiples of 16 bytes\)",
            tern.EP,
            self.comm,
            num_experts=4,
            max_topk=2,
            max_tokens=8,
            hidden=100,
        )
        self.refused(
            r"transfer is 'fast'", tern.EP, self.comm, num_experts=4, max_topk=2, transfer="fast"
        )
        self.refused(
            r"an id of 3 bytes: ids have 128", tern.Communicator, b"abc", 0, 1, machine="cpu"
        )
        self.refused(r"machine is 'tpu'", tern.Communicator, bytes(128), 0, 1, machine="tpu")
        for device in (-1, 1024, True):
            self.refused(
                rf"device is {device}: it must be a number from 0 to 1023",
                tern.Communicator,
                bytes(128),
                0,
                1,
                machine="cuda",
                device=device,
            )
        self.refused(
            r"device is 1: the cpu machine has none",
            tern.Communicator,
            bytes(128),
            0,
            1,
            machine="cpu",
            device=1,
        )
        self.refused(r"\(-1,\) is no shape", self.comm.empty, (-1,), torch.uint8)
        self.refused(r"nowhere", tern.id_from_address, "nowhere")
        with self.assertRaisesRegex(TypeError, "there is no argument 'speed'"):
            _tern.Comm(bytes(128), 0, 1, speed=3)

    def test_what_is_closed(self):
        route = self.ep.route(self.ids)
        route.close()
        route.close()
        self.refused("the route is closed", route.dispatch, self.x, num_rows=4, kind=tern.BadState)
        route = self.ep.route(self.ids)
        raw = self.ep.raw
        self.ep.close()
        self.refused("the route is closed", route.combine, self.x, kind=tern.BadState)
        self.refused("the EP object is closed", self.ep.route, self.ids, kind=tern.BadState)
        self.refused("the EP object is closed", raw.synchronize, kind=tern.BadState)
        self.comm.close()
        error = self.refused("the communicator is closed", self.comm.barrier, kind=tern.BadState)
        self.assertEqual((error.status, error.fault), (tern.Status.BAD_STATE, None))

    def test_arrays_of_numpy(self):
        route = self.ep.route(self.ids.numpy())
        rows = route.dispatch(np.arange(128, dtype=np.float32).reshape(4, 32), num_rows=4)
        self.assertEqual(rows.x.dtype, torch.float32)
        self.same(rows.x, np.arange(128, dtype=np.float32).reshape(4, 32))

    def test_one_row_whatever_its_stride(self):
        x = torch.ones(64, 1).bfloat16().t()
        self.assertEqual(x.stride(), (1, 1))
        route = self.ep.route(self.ids[:1])
        self.assertTrue(torch.equal(route.combine(route.dispatch(x)).x, x))

    def test_rows_that_are_one_row_expanded(self):
        route = self.ep.route(self.ids)
        row = torch.arange(64).bfloat16()
        self.assertTrue(torch.equal(route.dispatch(row.expand(4, 64)).x, row.repeat(4, 1)))
        half, scales = self.x[:, :32], torch.arange(4.0)[:, None]
        got = route.dispatch((half, scales.expand(4, 3)))
        self.assertTrue(torch.equal(got.x[1], scales.repeat(1, 3)))

    def test_refused_update_leaves_the_route(self):
        route = self.ep.route(self.ids)
        for ids in (torch.zeros(9, 2, dtype=torch.int64), torch.zeros(2, 1, dtype=torch.int32)):
            self.refused("9|not 1, 0", route.update, ids)
            rows = route.dispatch(self.x)
            self.assertEqual((rows.x.shape, rows.topk_idx.dtype), ((4, 64), torch.int64))
            self.assertTrue(torch.equal(route.combine(rows).x, self.x))

    def test_reset_makes_an_object_as_new(self):
        ids = self.ids.clone()
        ids[2, 0] = 5
        self.assertEqual(self.refused("5", self.route_and_wait, ids).fault.seen, 5)
        self.ep.reset()
        self.assertIsNone(self.ep.fault)
        self.assertTrue(torch.equal(self.ep.route(self.ids).dispatch(self.x).x, self.x))

    def test_other_threads_run_while_a_call_waits(self):
        """Rank 1 of 2 never comes: the thread that waits for it keeps neither the GIL nor this
        thread."""
        caught = []

        def wait():
            try:
                tern.Communicator(tern.create_id(), 0, 2, machine="cpu", timeout_ms=1500)
            except tern.Timeout as error:
                caught.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        steps = 0
        while thread.is_alive():
            thread.join(0.05)
            steps += 1
        self.assertGreater(steps, 10)
        self.assertEqual(caught[0].status, tern.Status.TIMEOUT)
        self.assertIsInstance(caught[0], TimeoutError)

    def test_communicator_of_the_environment(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        told = {"TERN_ID": f"127.0.0.1:{port}/test", "TERN_RANK": "0", "TERN_NUM_RANKS": "1"}
        with mock.patch.dict(os.environ, told):
            with tern.Communicator.from_environment(machine="cpu") as comm:
                self.assertEqual((comm.rank, comm.size, comm.machine), (0, 1, "cpu"))
        self.refused("TERN_ID", tern.Communicator.from_environment, kind=tern.BadState)

    def test_ids_out_of_range_are_the_fault_of_no_other_call(self):
        ids = self.ids.clone()
        ids[0, 0] = 4
        self.assertEqual(self.refused("4", self.route_and_wait, ids).fault.seen, 4)
        route = self.ep.route(self.ids)
        error = self.refused(
            rf"x is float32 \[4, 64\] on {self.place}: a row has 256 bytes .*max_row_bytes",
            route.dispatch,
            self.x.float(),
            num_rows=4,
        )
        self.assertIsNone(error.fault)

    def test_rows_of_wrong_size(self):
        route, few = self.ep.route(self.ids), torch.ones(4, 60).bfloat16()
        sentence = rf"x is bfloat16 \[4, 60\] on {self.place}: a row has 120 bytes, and must have a "
        self.refused(sentence + "multiple of 16", route.dispatch, few, num_rows=4)
        self.refused(sentence + "multiple of 32", route.dispatch, few, num_rows=4, cast="fp8")
        self.refused(sentence + "multiple of 16", route.combine, few)
        many = torch.ones(4, 72).bfloat16()
        sentence = r"a row has 144 bytes with all that goes with it, .* room for 128"
        self.refused(sentence, route.dispatch, many, num_rows=4)
        self.refused(sentence, route.dispatch, [self.x, self.x[:, :8]], num_rows=4)
        self.refused(sentence, route.combine, many)

    def test_import_needs_no_torch(self):
        code = "import sys, tern; sys.exit('torch' in sys.modules)"
        self.assertEqual(subprocess.run([sys.executable, "-c", code]).returncode, 0)
