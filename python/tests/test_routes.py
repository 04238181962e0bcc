# SPDX-License-Identifier: Apache-2.0
"""Routes, dispatch and combine, every bit against the reference."""

import gc
import os
import threading
import time
import weakref
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist

import reference as ref
import tern
from world import DEVICE, TIMEOUT_MS, RankTest, batch, values

EXPERTS, TOPK, TOKENS, HIDDEN = 8, 2, 24, 256


class LikeMpi:
    """What Communicator.from_mpi needs of an mpi4py communicator."""

    Get_rank = staticmethod(dist.get_rank)
    Get_size = staticmethod(dist.get_world_size)

    @staticmethod
    def bcast(told, root):
        box = [told]
        dist.broadcast_object_list(box, src=root)
        return box[0]


def shared_bytes():
    """Memory that this process shares with others: windows, its own and its peers'."""
    with open("/proc/self/maps") as maps:
        places = [line.split()[0].split("-") for line in maps if line.split()[1].endswith("s")]
    return sum(int(end, 16) - int(begin, 16) for begin, end in places)


class Routes(RankTest):
    options = {"heap_bytes": 2**24}

    def setUp(self):
        super().setUp()
        self.share = EXPERTS // self.size
        # Ranks have different numbers of tokens, one of them none.
        self.batches = [batch(r, TOKENS - 8 * r, HIDDEN, EXPERTS, TOPK) for r in range(self.size)]
        self.x, self.ids, self.weights = self.batches[self.rank]
        self.all_ids = [ids.numpy() for _, ids, _ in self.batches]
        self.all_x = [values(x) for x, _, _ in self.batches]
        self.ep = self.open()

    def open(self, **options):
        return tern.EP(
            self.comm,
            num_experts=EXPERTS,
            max_topk=TOPK,
            max_tokens=TOKENS,
            hidden=HIDDEN,
            **options,
        )

    def tearDown(self):
        self.close(self.ep)
        super().tearDown()

    def sums(self, factor, biases=()):
        """What combine gives if rank r's rows were multiplied by factor(r), in BF16."""
        return np.array(
            [
                ref.total(
                    [
                        ref.bf16(row * np.float32(factor(r)))
                        for r in range(self.size)
                        if any(e >= 0 and e // self.share == r for e in ids)
                    ],
                    HIDDEN,
                    [bias[t] for bias in biases],
                )
                for t, (row, ids) in enumerate(zip(self.all_x[self.rank], self.all_ids[self.rank]))
            ]
        ).reshape(-1, HIDDEN)

    def check_rank_rows(self, rows, num):
        wanted = ref.rank_rows(self.all_ids, self.rank, self.share)
        self.assertEqual(num, len(wanted))
        self.same(
            rows.x[:num], np.array([self.all_x[s][t] for s, t in wanted]).reshape(-1, HIDDEN), "x"
        )
        local = (
            np.array([self.all_ids[s][t] for s, t in wanted]).reshape(-1, TOPK)
            - self.rank * self.share
        )
        is_local = (local >= 0) & (local < self.share)
        self.same(rows.topk_idx[:num], np.where(is_local, local, -1), "topk_idx")
        weights = np.array([self.batches[s][2][t].numpy() for s, t in wanted], np.float32).reshape(
            -1, TOPK
        )
        self.same(
            rows.topk_weights[:num], np.where(is_local, weights, np.float32(0)), "topk_weights"
        )
        self.same(rows.source[:num], np.array(wanted, np.int32).reshape(-1, 2), "source")

    def test_routes_of_graphs_stay(self):
        """As if graphs were captured, which the CPU machine has none of: a route that one has is open
        when nobody else holds it, until it is closed."""
        x, ids = self.x, self.ids
        for what in ("open", "update", "dispatch", "combine", "nothing", "close"):
            ep = self.open(max_routes=1)

            def during(name, ep=ep, what=what):
                return mock.patch.object(tern.tensors, "capturing", lambda comm: name == what)

            with self.subTest(what=what):
                with during("open"):
                    route = ep.route(ids)
                with during("update"):
                    route.update(ids)
                with during("dispatch"):
                    rows = route.dispatch(x, num_rows=TOKENS * self.size)
                with during("combine"):
                    route.combine(rows.x)
                if what == "close":
                    with during("close"):
                        route.update(ids)
                    route.close()
                del route
                if what in ("nothing", "close"):
                    ep.route(ids)
                else:
                    with self.assertRaises(tern.Error):
                        ep.route(ids)
            self.close(ep)

    def test_outputs_where_the_caller_wants_them(self):
        made = []

        def empty(shape, dtype):
            made.append(torch.empty(shape, dtype=dtype))
            return made[-1]

        rows = self.ep.route(self.ids).plain_dispatch(
            self.x,
            self.weights,
            cast=None,
            num_rows=None,
            topk_idx=True,
            source=True,
            zero_padding=True,
            num_sms=None,
            empty=empty,
        )
        places = [t.data_ptr() for t in (rows.x, rows.topk_idx, rows.topk_weights, rows.source)]
        self.assertEqual(places, [t.data_ptr() for t in made])
        self.check_rank_rows(rows, len(rows.x))

    def test_exact_rows_by_rank(self):
        route = self.ep.route(self.ids)
        rows = route.dispatch(self.x, self.weights, source=True)
        self.check_rank_rows(rows, len(rows.x))
        self.assertEqual(sum(route.counts.rank_counts), len(rows.x))
        bias = torch.full((len(self.x), HIDDEN), 0.375).bfloat16()
        sums = route.combine(
            rows.x * (1 + self.rank / 8), rows.topk_weights, bias=(bias, -0.5 * bias)
        )
        self.same(
            sums.x, self.sums(lambda r: 1 + r / 8, [values(bias), values(-0.5 * bias)]), "sums"
        )
        self.same(
            sums.weights,
            np.where(self.all_ids[self.rank] >= 0, self.weights.numpy(), np.float32(0)),
            "weights",
        )

    def test_rows_that_are_pushed(self):
        for wish in (True, False, None):
            self.combined(wish)
        with self.assertRaisesRegex(tern.InvalidArgument, "combine_push is 2"):
            self.open(combine_push=2)

    def combined(self, wish):
        ep = self.open(combine_push=wish)
        route = ep.route(self.ids)
        rows = route.dispatch(self.x, self.weights)
        sums = route.combine(rows.x * (1 + self.rank / 8), rows.topk_weights)
        self.same(sums.x, self.sums(lambda r: 1 + r / 8), "sums")
        self.same(
            sums.weights,
            np.where(self.all_ids[self.rank] >= 0, self.weights.numpy(), np.float32(0)),
            "weights",
        )
        self.close(ep)

    def test_rows_that_are_drained(self):
        ep = self.open(dispatch_drain=True)
        route = ep.route(self.ids)
        rows = route.dispatch(self.x, self.weights, source=True)
        self.check_rank_rows(rows, route.counts.num_rows)
        self.same(route.combine(rows).x, self.sums(lambda r: 1), "sums")
        self.close(ep)

    def test_static_rows_and_update(self):
        capacity = self.size * TOKENS
        route = self.ep.route(torch.zeros_like(self.ids) - 1)
        rows = route.dispatch(self.x, num_rows=capacity)
        self.assertEqual(int((rows.x != 0).sum()), 0)
        self.assertEqual(route.counts.num_rows, 0)
        route.update(self.ids)
        rows = route.dispatch(self.x, self.weights, num_rows=capacity, source=True)
        num = route.counts.num_rows
        self.check_rank_rows(rows, num)
        self.assertTrue(
            bool((rows.topk_idx[num:] == -1).all()) and bool((rows.source[num:] == -1).all())
        )
        self.assertEqual(int((rows.x[num:] != 0).sum()), 0)
        self.same(route.combine(rows).x, self.sums(lambda r: 1), "sums")

    def test_rows_without_room_are_left_out(self):
        route = self.ep.route(self.ids)
        num = route.counts.num_rows // 2
        rows = route.dispatch(self.x, num_rows=num)
        self.same(rows.x, values(route.dispatch(self.x).x)[:num])

    def test_route_serves_again(self):
        route = self.ep.route(self.ids.int())
        first = route.dispatch(self.x, self.weights)
        self.assertEqual(first.topk_idx.dtype, torch.int32)
        again = route.dispatch(-self.x, self.weights, topk_idx=False)
        self.same(again.x, -values(first.x))
        self.assertIsNone(again.topk_idx)
        self.same(route.combine(again).x, self.sums(lambda r: -1))

    def test_rows_by_expert(self):
        route = self.ep.route(self.ids, layout="expert", expert_alignment=8)
        rows = route.dispatch(self.x, self.weights, source=True)
        wanted, offsets = ref.expert_rows(self.all_ids, self.rank, self.share, 8)
        self.assertEqual(route.counts.expert_offsets, tuple(offsets))
        self.same(
            rows.x,
            np.array(
                [
                    np.zeros(HIDDEN, np.float32) if w is None else self.all_x[w[0]][w[1]]
                    for w in wanted
                ]
            ).reshape(-1, HIDDEN),
            "x",
        )
        self.same(
            rows.topk_weights,
            np.array(
                [0 if w is None else self.batches[w[0]][2][w[1], w[2]] for w in wanted], np.float32
            ),
            "weights",
        )
        self.same(
            rows.source,
            np.array([(-1, -1) if w is None else w[:2] for w in wanted], np.int32).reshape(-1, 2),
        )
        for _ in range(2):  # the second time where the first left its rows
            static = route.dispatch(self.x, self.weights, num_rows=len(wanted) + 40, source=True)
            self.same(static.x[: len(wanted)], values(rows.x), "x, static")
            self.assertEqual(int((static.x[len(wanted) :] != 0).sum()), 0)
            self.assertEqual(int((static.topk_weights[len(wanted) :] != 0).sum()), 0)
            self.assertTrue(bool((static.source[len(wanted) :] == -1).all()))
            static.x[:] = 7
            del static
        sums = route.combine(rows.x * rows.topk_weights[:, None].bfloat16(), rows.topk_weights)
        mine = [
            ref.total([ref.bf16(row * ref.bf16(w)) for e, w in zip(ids, weights) if e >= 0], HIDDEN)
            for row, ids, weights in zip(
                self.all_x[self.rank], self.all_ids[self.rank], self.weights.numpy()
            )
        ]
        self.same(sums.x, np.array(mine).reshape(-1, HIDDEN), "sums")
        self.same(
            sums.weights,
            np.where(self.all_ids[self.rank] >= 0, self.weights.numpy(), np.float32(0)),
        )

    def test_rows_by_expert_that_are_more_than_staging(self):
        """All choices of all ranks fall on rank 0: twice what the default has room for."""
        x, weights = torch.ones(TOKENS, HIDDEN).bfloat16(), torch.ones(TOKENS, TOPK)
        ids = torch.arange(TOPK).repeat(TOKENS, 1)
        route = self.ep.route(ids, layout="expert")
        rows = route.dispatch(x, weights)
        self.assertEqual(len(rows.x), TOPK * self.size * TOKENS if self.rank == 0 else 0)
        sums = route.combine(rows.x.clone(), rows.topk_weights.clone())  # in no window
        self.assertTrue(bool((sums.x == TOPK).all() and (sums.weights == 1).all()))
        ep = self.open(staging_bytes=2**12)  # a limit that was asked for
        route = ep.route(ids, layout="expert")
        rows = route.dispatch(x)
        if self.rank == 0:
            with self.assertRaisesRegex(tern.NoSpace, "raise staging_bytes"):
                route.combine(rows.x.clone())
        self.assertTrue(bool((route.combine(rows).x == TOPK).all()))
        self.close(ep)

    def test_cast_to_fp8(self):
        rows = self.ep.route(self.ids).dispatch(self.x, cast="fp8")
        wanted = [
            ref.fp8(self.all_x[s][t]) for s, t in ref.rank_rows(self.all_ids, self.rank, self.share)
        ]
        self.same(rows.x.view(torch.uint8), np.array([codes for codes, _ in wanted]), "codes")
        self.same(rows.scales, np.array([scales for _, scales in wanted]), "scales")

    def test_several_payloads_with_strides(self):
        scales = (
            torch.arange(len(self.x) * 2, dtype=torch.float32).reshape(2, -1).t() + 100 * self.rank
        )
        every = [
            (torch.arange((TOKENS - 8 * r) * 2).reshape(2, -1).t() + 100 * r).numpy()
            for r in range(self.size)
        ]
        half = self.x[:, : HIDDEN // 2]
        rows = self.ep.route(self.ids).dispatch((half, scales))
        wanted = ref.rank_rows(self.all_ids, self.rank, self.share)
        self.same(rows.x[0], np.array([self.all_x[s][t][: HIDDEN // 2] for s, t in wanted]))
        self.same(rows.x[1], np.array([every[s][t] for s, t in wanted], np.float32))

    def test_domains(self):
        ep = self.open(domain_ranks=2)
        route = ep.route(self.ids)
        rows = route.dispatch(self.x, self.weights, source=True)
        self.check_rank_rows(rows, len(rows.x))
        sums = route.combine(rows.x * (1 + self.rank / 8)).x
        mine = []
        for row, ids in zip(self.all_x[self.rank], self.all_ids[self.rank]):
            given = [
                [
                    ref.bf16(row * np.float32(1 + r / 8))
                    for r in pair
                    if any(e >= 0 and e // self.share == r for e in ids)
                ]
                for pair in ((0, 1), (2, 3))
            ]
            mine.append(ref.total([ref.total(part, HIDDEN) for part in given if part], HIDDEN))
        self.same(sums, np.array(mine).reshape(-1, HIDDEN))
        self.close(ep)

    def test_tensors_hold_memory_and_communicator(self):
        route = self.ep.route(self.ids)
        rows = route.dispatch(self.x)
        kept, wanted = rows.x, values(rows.x).copy()
        addresses = set()
        for _ in range(2000):  # more memory than the window has, were it not given back
            made = self.comm.empty((64, HIDDEN), torch.bfloat16)
            addresses.add(made.data_ptr())
        self.assertLess(len(addresses), 10)
        alive = weakref.ref(self.comm)
        self.comm.barrier()
        self.ep.close()
        route.close()
        del route, rows, made
        self.comm.close()
        self.comm = None
        self.ep = None
        gc.collect()
        self.assertIsNone(alive())
        self.same(kept, wanted)  # still mapped, still its own
        kept.add_(1)
        del kept
        super().setUp()
        self.ep = self.open()

    def test_window_that_is_full(self):
        kept = [self.comm.empty((2**23,), torch.uint8)]
        with self.assertRaisesRegex(tern.OutOfMemory, "16777216"):
            kept.append(self.comm.empty((2**24,), torch.uint8))
        self.assertIsInstance(tern.OutOfMemory("x"), MemoryError)

    def test_collectives_of_the_host(self):
        every = self.comm.allgather(bytes([self.rank, 7]))
        self.assertEqual(every, [bytes([r, 7]) for r in range(self.size)])
        self.comm.barrier()
        self.assertIn(f"{self.size} ranks", self.comm.describe())

    def test_one_thread_at_a_time(self):
        if self.rank == 0:
            waiting = threading.Thread(target=self.comm.barrier)
            waiting.start()
            time.sleep(0.5)
            with self.assertRaisesRegex(tern.BadState, "another thread is in a call"):
                self.comm.barrier()
            with self.assertRaisesRegex(tern.BadState, "another thread is in a call"):
                self.comm.empty((1,), torch.uint8)
        dist.barrier()
        if self.rank == 0:
            waiting.join()
        else:
            self.comm.barrier()

    def test_object_that_ends_while_a_call_waits(self):
        """On a communicator that another thread is in a call on: to close it is refused, and if its
        last name goes, it stays until the next call."""
        if DEVICE != "cpu":
            self.skipTest("memory of a GPU is not this host's")
        before = shared_bytes()
        ep = self.open()
        opened = shared_bytes()
        self.assertGreater(opened, before)
        if self.rank == 0:
            waiting = threading.Thread(target=self.comm.barrier)
            waiting.start()
            time.sleep(0.5)
            with self.assertRaisesRegex(tern.BadState, "another thread is in a call"):
                ep.close()
            del ep
            gc.collect()
            self.assertEqual(shared_bytes(), opened)
        dist.barrier()
        if self.rank == 0:
            waiting.join()
        else:
            self.comm.barrier()
            ep.close()
        self.comm.barrier()
        self.assertEqual(shared_bytes(), before)

    def test_forked_process(self):
        """A child has none of its parent's objects, and what it drops harms nobody."""
        if DEVICE != "cpu":
            self.skipTest("a forked process cannot use its parent's GPU")
        route = self.ep.route(self.ids)
        rows = route.dispatch(self.x)
        child = os.fork()
        if child == 0:
            outcome = 1
            try:
                calls = (
                    self.comm.barrier,
                    self.ep.synchronize,
                    lambda: self.comm.empty((1,), torch.uint8),
                    lambda: route.dispatch(self.x),
                )
                for call in calls:
                    with self.assertRaisesRegex(tern.BadState, f"of process {os.getppid()}, and"):
                        call()
                route.close()
                self.ep.close()
                self.comm.close()
                del route, rows, call, calls
                self.ep = self.comm = None
                gc.collect()
                outcome = 0
            finally:
                os._exit(outcome)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.same(route.combine(rows).x, self.sums(lambda r: 1))
        self.comm.barrier()

    def test_window_that_grows(self):
        if DEVICE != "cpu":
            self.skipTest("a GPU's windows are of 2 MiB at least")
        with tern.Communicator.from_torch(
            machine=DEVICE, timeout_ms=TIMEOUT_MS, heap_bytes=2**20, heap_max_bytes=2**22
        ) as comm:
            with self.assertRaises(tern.OutOfMemory):
                comm.empty((2**21,), torch.uint8)
            comm.grow(2**21)
            self.assertEqual(len(comm.empty((2**21,), torch.uint8)), 2**21)

    def test_communicator_of_a_group_and_of_mpi(self):
        group = dist.new_group([1, 2, 3])
        if self.rank > 0:
            with tern.Communicator.from_torch(group, machine=DEVICE, timeout_ms=TIMEOUT_MS) as comm:
                self.assertEqual((comm.rank, comm.size), (self.rank - 1, 3))
        with tern.Communicator.from_mpi(LikeMpi(), machine=DEVICE, timeout_ms=TIMEOUT_MS) as comm:
            self.assertEqual((comm.rank, comm.size), (self.rank, self.size))
            self.assertEqual(comm.allgather(b"%d" % self.rank), [b"0", b"1", b"2", b"3"])

    def test_root_that_makes_no_id_fails_all(self):
        with self.assertRaisesRegex(tern.Error, "203.0.113.1"):  # no address of any host
            tern.Communicator.from_torch(interface="203.0.113.1", machine=DEVICE)

    def test_ranks_that_disagree(self):
        with self.assertRaisesRegex(tern.Mismatch, "max_tokens"):
            tern.EP(
                self.comm,
                num_experts=EXPERTS,
                max_topk=TOPK,
                max_tokens=16 + self.rank,
                hidden=HIDDEN,
            )

    def one_is_out_of_range(self):
        """Ids of which rank 0 has one that is no expert's, and what they count as."""
        ids, clean = self.ids.clone(), self.ids.clone()
        if self.rank == 0:
            ids[0, 1], clean[0, 1] = EXPERTS, -1
        return ids, clean

    def told_here(self, call):
        """Rank 0 is told, once: the second call is as any other rank's."""
        if self.rank == 0:
            with self.assertRaisesRegex(tern.InvalidArgument, f"{EXPERTS}") as caught:
                call()
            self.told = caught.exception
        return call()

    def test_ids_out_of_range(self):
        """They count as -1 and end nothing, whoever tells of them, and whenever."""
        ids, clean = self.one_is_out_of_range()
        for layout in ("rank", "expert"):
            plain = self.ep.route(clean, layout=layout)
            want = plain.dispatch(self.x, self.weights)
            for call in (
                lambda route: route.counts,
                lambda route: route.dispatch(self.x, self.weights),
                lambda route: self.ep.synchronize(),
            ):
                for updated in (False, True):
                    with self.subTest(layout=layout, updated=updated):
                        route = self.ep.route(clean if updated else ids, layout=layout)
                        if updated:
                            route.update(ids)
                        self.told_here(lambda: call(route))
                        if self.rank == 0:
                            fault = self.told.fault
                            self.assertEqual((fault.peer, fault.seen), (0, EXPERTS))
                        self.ep.synchronize()
                        num = plain.counts.num_rows
                        got = route.dispatch(self.x, self.weights, num_rows=num)
                        self.assertTrue(torch.equal(got.x, want.x))
                        self.ep.synchronize()
                        route.close()
            plain.close()

    def test_ids_out_of_range_of_two_routes(self):
        ids, _ = self.one_is_out_of_range()
        routes = [self.ep.route(ids) for _ in range(2)]
        if self.rank == 0:
            with self.assertRaisesRegex(tern.InvalidArgument, f"{EXPERTS}"):
                self.ep.synchronize()
        self.told_here(self.ep.synchronize)
        for route in routes:
            route.update(ids)
        self.told_here(lambda: routes[1].counts)
        self.told_here(self.ep.synchronize)  # of the other one
