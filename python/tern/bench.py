# SPDX-License-Identifier: Apache-2.0
"""python -m tern.bench: what dispatch, combine and low latency take, from Python, on tensors of
torch.

In the world of the process: of torchrun or another launcher that sets RANK and WORLD_SIZE, of
tern-run, else of one rank. Every result is checked. `python -m tern.bench COMMAND ...`, with a
command of the program tern-bench, runs that instead, where it is installed beside the package or
the library; --host-cost is tern.host_cost.
"""

import argparse
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Tuple

from . import EP, Communicator, create_id, report

if TYPE_CHECKING:
    import torch

COMMANDS = ("ep", "ll", "wire", "demo", "nic", "put", "get", "pingpong", "signal", "atomic")
COMMANDS += ("barrier", "help")
UNITS = {
    "tokens": "",
    "op": "",
    "p10": "us",
    "p50": "us",
    "p90": "us",
    "remote": "GB/s",
    "hidden": "",
    "topk": "",
    "experts": "",
    "ranks": "",
    "dtype": "",
    "#wrong": "",
}


def program() -> Optional[str]:
    """The C tool: beside the package, in bin/ beside its folder or of this Python, or on PATH."""
    package = Path(__file__).resolve().parent
    for folder in (package, package.parents[1] / "bin", Path(sys.prefix, "bin")):
        if os.access(folder / "tern-bench", os.X_OK):
            return str(folder / "tern-bench")
    return shutil.which("tern-bench")


def _world(machine: str, heap_bytes: int) -> Communicator:
    """Every launcher's own."""
    options: Dict[str, Any] = dict(machine=machine, heap_bytes=heap_bytes)
    if machine == "cuda":
        import torch

        local = os.environ.get("LOCAL_RANK", os.environ.get("TERN_RANK", "0"))
        torch.cuda.set_device(int(local) % torch.cuda.device_count())
    if "TERN_ID" in os.environ or "TERN_ID_FD" in os.environ:
        return Communicator.from_environment(**options)
    if "WORLD_SIZE" in os.environ:
        import torch.distributed as dist

        if not dist.is_initialized():
            dist.init_process_group("gloo")  # only to find each other
        return Communicator.from_torch(**options)
    return Communicator(create_id("127.0.0.1"), 0, 1, **options)


class _Clock:
    """Times of calls on this rank, in us: by events on cuda, else by the clock, as calls return
    when their operation has run."""

    def __init__(self, comm: Communicator, iterations: int) -> None:
        self.comm, self.iterations = comm, iterations

    def times(self, call: Callable[[], Any]) -> List[float]:
        """The slowest rank's, in order."""
        for _ in range(3):
            call()
        self.comm.barrier()
        mine = self._on_stream(call) if self.comm.machine == "cuda" else self._here(call)
        every = self.comm.allgather(struct.pack(f"{len(mine)}d", *mine))
        ranks = [struct.unpack(f"{len(mine)}d", told) for told in every]
        return sorted(map(max, zip(*ranks)))

    def _here(self, call: Callable[[], Any]) -> List[float]:
        taken = []
        for _ in range(self.iterations):
            begin = perf_counter()
            call()
            taken.append((perf_counter() - begin) * 1e6)
        return taken

    def _on_stream(self, call: Callable[[], Any]) -> List[float]:
        import torch

        events = []
        for _ in range(self.iterations):
            pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            pair[0].record()
            call()
            pair[1].record()
            events.append(pair)
        torch.cuda.synchronize(self.comm.device)
        return [begin.elapsed_time(end) * 1e3 for begin, end in events]


def _batch(comm: Communicator, tokens: int, given: Any) -> Tuple[Any, Any, Any]:
    """A rank's tokens, ids that are all different in a token, and weights."""
    import torch

    random = torch.Generator().manual_seed(1000 * tokens + comm.rank)
    x = torch.randn(tokens, given.hidden, generator=random, device="cpu").bfloat16()
    scores = torch.rand(tokens, given.experts, generator=random, device="cpu")
    ids = scores.argsort(1)[:, : given.topk]
    weights = torch.ones(tokens, given.topk)
    return tuple(tensor.contiguous().to(comm.device) for tensor in (x, ids, weights))


def _wrong(comm: Communicator, have: "torch.Tensor", wanted: "torch.Tensor") -> int:
    """Elements that are wrong, on all ranks."""
    mine = int((have != wanted.bfloat16()).sum())
    return sum(struct.unpack("q", told)[0] for told in comm.allgather(struct.pack("q", mine)))


def _far(comm: Communicator, ids: "torch.Tensor", experts: int) -> Tuple["torch.Tensor", int]:
    """Ranks that each token goes to, and rows that leave this rank."""
    owners = ids // (experts // comm.size)
    goes = (owners[:, :, None] == owners.new_tensor(range(comm.size))).any(1)
    return goes.sum(1), int(goes.sum()) - int(goes[:, comm.rank].sum())


def _row(given: Any, comm: Communicator, tokens: int, op: str, dtype: str) -> Dict[str, Any]:
    return {
        "tokens": tokens,
        "op": op,
        "hidden": given.hidden,
        "topk": given.topk,
        "experts": given.experts,
        "ranks": comm.size,
        "dtype": dtype,
    }


def _timed(row: Dict[str, Any], times: List[float], remote: int, wrong: int) -> Dict[str, Any]:
    for per_cent in (10, 50, 90):
        row[f"p{per_cent}"] = times[len(times) * per_cent // 100]
    row["remote"], row["#wrong"] = remote / row["p50"] / 1e3, wrong
    return row


def _routed(comm: Communicator, ep: EP, clock: _Clock, given: Any, tokens: int) -> List[Any]:
    x, ids, weights = _batch(comm, tokens, given)
    ranks, far = _far(comm, ids, given.experts)
    route = ep.route(ids)
    rows = route.dispatch(x, weights)
    capacity = len(rows.x)
    sums = route.combine(rows)
    wrong = _wrong(comm, sums.x, x.float() * ranks[:, None])
    took = [
        clock.times(lambda: route.dispatch(x, weights, num_rows=capacity, zero_padding=False)),
        clock.times(lambda: route.combine(rows, out=sums.x)),
    ]
    route.close()
    return [
        _timed(_row(given, comm, tokens, op, "bf16"), times, far * given.hidden * 2, wrong)
        for op, times in zip(("dispatch", "combine"), took)
    ]


def _low(comm: Communicator, ep: EP, clock: _Clock, given: Any, tokens: int) -> List[Any]:
    x, ids, weights = _batch(comm, tokens, given)
    _, far = _far(comm, ids, given.experts)
    batch = ep.ll_dispatch(x, ids)
    y = batch.x.clone()
    sums, _ = ep.ll_combine(batch, y, weights)
    wrong = _wrong(comm, sums, x.float() * given.topk)
    dispatch = clock.times(lambda: ep.ll_dispatch(x, ids, cast="fp8"))
    batch = ep.ll_dispatch(x, ids)
    combine = clock.times(lambda: ep.ll_combine(batch, y, weights, out=sums))
    choices = int((ids // (given.experts // comm.size) != comm.rank).sum())
    row_bytes = given.hidden + 4 * ((given.hidden + 127) // 128)
    return [
        _timed(_row(given, comm, tokens, "ll_dispatch", "fp8"), dispatch, far * row_bytes, wrong),
        _timed(
            _row(given, comm, tokens, "ll_combine", "bf16"),
            combine,
            choices * given.hidden * 2,
            wrong,
        ),
    ]


def measure(given: Any) -> Tuple[int, List[Dict[str, Any]]]:
    """This process's rank, and a row for every operation and number of tokens."""
    most, ll_most = max(given.tokens, default=0), max(given.ll_tokens, default=0)
    # Outputs of a dispatch three times over, slabs and staging; of ranks at most as many as GPUs.
    world = int(os.environ.get("WORLD_SIZE", os.environ.get("TERN_NUM_RANKS", "1")))
    row_bytes = 2 * given.hidden + 64 * given.topk
    heap = 2**26 + 8 * world * most * row_bytes + 8 * given.experts * ll_most * row_bytes
    with _world(given.machine, heap) as comm:
        clock = _Clock(comm, given.iterations)
        ep = EP(
            comm,
            num_experts=given.experts,
            max_topk=given.topk,
            max_tokens=most,
            hidden=given.hidden if most else 0,
            ll_tokens=ll_most,
            ll_hidden=given.hidden if ll_most else 0,
            # One object for all: left to the library it would push few tokens, too, if most are many.
            combine_push=None if len(given.tokens) == 1 else False,
        )
        rows = [row for n in given.tokens for row in _routed(comm, ep, clock, given, n)]
        rows += [row for n in given.ll_tokens for row in _low(comm, ep, clock, given, n)]
        ep.synchronize()
        comm.barrier()
        ep.close()
        return comm.rank, rows


def _numbers(text: str) -> List[int]:
    return [int(part) for part in text.split(",") if part]


def _options(args: Sequence[str]) -> Any:
    import torch

    machine = os.environ.get("TERN_MACHINE", "")
    if machine not in ("cpu", "cuda"):
        machine = "cuda" if torch.cuda.is_available() else "cpu"
    first = argparse.ArgumentParser(add_help=False)  # defaults of the others are the machine's
    first.add_argument("--machine", default=machine)
    small = first.parse_known_args(args)[0].machine == "cpu"
    parser = argparse.ArgumentParser("python -m tern.bench", description=__doc__.split("\n\n")[1])
    add = parser.add_argument
    add(
        "--machine",
        choices=("cpu", "cuda"),
        default=machine,
        help=f"what runs kernels; default TERN_MACHINE, else what torch has: here {machine}",
    )
    add(
        "--tokens",
        type=_numbers,
        default=[16, 64] if small else [128, 4096],
        metavar="N[,N..]",
        help="tokens a rank, of dispatch and combine; default 128,4096, cpu 16,64; '': none",
    )
    add(
        "--ll-tokens",
        type=_numbers,
        default=[1, 16] if small else [1, 128],
        metavar="N[,N..]",
        help="tokens a rank, of low latency; default 1,128, cpu 1,16; '': none",
    )

    def add_number(name: str, cpu: int, cuda: int, told: str) -> None:
        told = f"{told}; default {cuda}, cpu {cpu}"
        add(name, type=int, default=cpu if small else cuda, metavar="N", help=told)

    add_number("--hidden", 512, 7168, "channels a token")
    add_number("--topk", 2, 8, "experts a token")
    add_number("--experts", 16, 256, "of all ranks")
    add_number("--iterations", 20, 50, "timed iterations")
    add("--json", metavar="FILE", help="write the same as JSON")
    return parser.parse_args(args)


def main(args: Sequence[str]) -> int:
    if args and args[0] in COMMANDS:
        tool = program()
        if tool is None:
            print("tern-bench is neither beside the package nor on PATH", file=sys.stderr)
            return 1
        return subprocess.run([tool, *args]).returncode
    if "--host-cost" in args:
        from . import host_cost

        return host_cost.main([arg for arg in args if arg != "--host-cost"])
    given = _options(args)
    rank, rows = measure(given)
    wrong = sum(row["#wrong"] for row in rows)
    if rank == 0:
        notes = {
            **report.about(given.machine),
            "time": f"of a call from Python, slowest rank, {given.iterations} iterations; "
            + ("device events" if given.machine == "cuda" else "until it has run"),
            "GB/s": "rows that leave rank 0, over p50",
            "result": f"{wrong} elements wrong: {'ok' if wrong == 0 else 'WRONG'}",
        }
        report.show(notes, UNITS, rows)
        if given.json:
            report.write(given.json, "python", notes, UNITS, rows)
    return wrong != 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
