# SPDX-License-Identifier: Apache-2.0
"""python -m tern.host_cost: what a call costs the host beyond the library's own.

`alone`: operations are left out of their calls (tern._tern.measure), so that what remains is the
package's: checks, tensors, arguments. It is taken in rounds over all operations, on a machine that
has nothing else to do; `slow` is the median of the slowest round, and far from p50 where something
else was running. `among`: real operations, less the time that they spend in
the library, which the extension counts; on the cpu machine, whose kernels run in this process and
on its processors, these find cold caches. `instructions`, with --instructions: of the package
alone, counted by valgrind, which takes minutes. A world of one rank and a few tokens: the package's
part does not depend on either.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Callable, Dict, Iterator, List, Sequence, Tuple

from . import EP, Communicator, _tern, create_id, host_parts, report

# What each operation may take, in us.
LIMITS = {
    "dispatch": 15.0,
    "combine": 15.0,
    "ll_dispatch": 8.0,
    "ll_dispatch fp8": 8.0,
    "ll_combine": 8.0,
}
TOKENS, HIDDEN, EXPERTS, TOPK = 8, 256, 8, 2
_ROUNDS = 10

_NOTHING, _TIME, _ALONE = range(3)  # enum py_measure


def _inputs(ep: EP) -> Tuple[Any, Any, Any]:
    import torch

    device = ep.comm.device
    x = torch.ones(TOKENS, HIDDEN, dtype=torch.bfloat16, device=device)
    ids = torch.arange(TOKENS * TOPK, device=device).reshape(TOKENS, TOPK) % EXPERTS
    return x, ids, torch.ones(TOKENS, TOPK, device=device)


def _cases(ep: EP) -> Dict[str, Callable[[], Any]]:
    """Operations by name. Each may be called again and again; a combine after its dispatch."""
    x, ids, weights = _inputs(ep)
    route = ep.route(ids)
    rows = route.dispatch(x, weights)
    leaf, row_leaf = x.clone().requires_grad_(), rows.x.clone().requires_grad_()
    batches = [ep.ll_dispatch(x, ids)]
    y = batches[0].x.clone()

    def low() -> None:
        batches[0] = ep.ll_dispatch(x, ids)

    return {
        "dispatch": lambda: route.dispatch(x, weights),
        "dispatch, num_rows given": lambda: route.dispatch(x, weights, num_rows=TOKENS),
        "dispatch, with a gradient": lambda: route.dispatch(leaf, weights),
        "combine": lambda: route.combine(rows.x, rows.topk_weights),
        "combine, with a gradient": lambda: route.combine(row_leaf, rows.topk_weights),
        "ll_dispatch fp8": lambda: ep.ll_dispatch(x, ids, cast="fp8"),
        "ll_dispatch, sent and received": lambda: ep.ll_dispatch(x, ids, hook=True).hook(),
        "ll_dispatch": low,
        "ll_combine": lambda: ep.ll_combine(batches[0], y, weights),
    }


@contextmanager
def _opened(machine: str) -> Iterator[EP]:
    import torch

    torch.set_num_threads(1)
    with Communicator(create_id("127.0.0.1"), 0, 1, machine=machine, heap_bytes=2**24) as comm:
        with EP(
            comm,
            num_experts=EXPERTS,
            max_topk=TOPK,
            max_tokens=TOKENS,
            hidden=HIDDEN,
            ll_tokens=TOKENS,
            ll_hidden=HIDDEN,
            num_sms=1,
        ) as ep:
            try:
                yield ep
            finally:
                _tern.measure(_NOTHING)


def _sample(ops: List[Callable[[], Any]], times: int) -> List[List[Tuple[int, int]]]:
    """(ns in all, ns in the library) of every call of every operation, which run in turn."""
    taken: List[List[Tuple[int, int]]] = [[] for _ in ops]
    for _ in range(times):
        for op, samples in zip(ops, taken):
            spent, begin = _tern.spent(), perf_counter_ns()
            op()
            end = perf_counter_ns()
            samples.append((end - begin, _tern.spent() - spent))
    return taken


def _at(values: List[int], per_cent: int) -> float:
    return sorted(values)[len(values) * per_cent // 100] / 1e3


def measure(machine: str, times: int = 1000) -> List[Dict[str, Any]]:
    """A row an operation, in us."""
    with _opened(machine) as ep:
        ops = _cases(ep)
        calls = list(ops.values())
        _tern.measure(_TIME)
        _sample(calls, 20)
        among = _sample(calls, times // 10)
        ep.synchronize()
        _tern.measure(_ALONE)
        rounds = [[_sample([op], times // _ROUNDS)[0] for op in calls] for _ in range(_ROUNDS)]
    rows = []
    for name, mixed, *apart in zip(ops, among, *rounds):
        row: Dict[str, Any] = {"op": name}
        for per_cent in (10, 50, 90):
            row[f"p{per_cent}"] = _at([total for part in apart for total, _ in part], per_cent)
        row["slow"] = max(_at([total for total, _ in part], 50) for part in apart)
        row["among"] = _at([total - inside for total, inside in mixed], 50)
        row["library"] = _at([inside for _, inside in mixed], 50)
        row["limit"] = LIMITS.get(name)
        rows.append(row)
    return rows


def parts(machine: str) -> List[Dict[str, Any]]:
    """A row a step of such calls, in ns."""
    with _opened(machine) as ep:
        x, ids, weights = _inputs(ep)
        return host_parts.table(ep, ep.route(ids), x, ids, weights)


def _call(times: int) -> None:
    """Calls each operation `times` times, then twice as often, with a call of spent() before, in
    between and after, at which valgrind writes what it has counted; prints their names."""
    with _opened("cpu") as ep:
        ops = _cases(ep)
        _tern.measure(_ALONE)
        for name, op in ops.items():
            for num in (10, times, 2 * times):
                _tern.spent()
                for _ in range(num):
                    op()
            _tern.spent()
            print(name, flush=True)


def instructions(times: int = 100) -> Dict[str, float]:
    """Of a call of each operation on the cpu machine: how many more 2N calls take than N, over
    N."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["valgrind", "--tool=callgrind", "--dump-before=spent"]
        command += [f"--callgrind-out-file={folder}/out", sys.executable, "-m", "tern.host_cost"]
        told = subprocess.run(
            command + ["--calls", str(times)],
            check=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        )
        names = told.stdout.splitlines()
        # out.1 is what lies before the first call of spent(); then four files an operation.
        counts = []
        for part in range(1, 4 * len(names) + 1):
            text = Path(folder, f"out.{part}").read_text()
            counts.append(int(re.search(r"^(?:summary|totals): (\d+)", text, re.M).group(1)))
    return {name: (counts[4 * i + 3] - counts[4 * i + 2]) / times for i, name in enumerate(names)}


UNITS = {
    "op": "",
    "p10": "us",
    "p50": "us",
    "p90": "us",
    "slow": "us",
    "limit": "us",
    "among": "us",
    "library": "us",
    "instructions": "a call",
}


def main(args: Sequence[str]) -> int:
    import torch

    parser = argparse.ArgumentParser("python -m tern.host_cost")
    parser.add_argument("--machine", choices=("cpu", "cuda"))
    parser.add_argument("--instructions", action="store_true", help="count them, by valgrind")
    parser.add_argument("--parts", action="store_true", help="what the steps of a call take")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--calls", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args(args)
    if given.calls is not None:
        _call(given.calls)
        return 0
    machine = given.machine or ("cuda" if torch.cuda.is_available() else "cpu")
    rows = measure(machine)
    counted = instructions() if given.instructions else {}
    for row in rows:
        row["instructions"] = counted.get(row["op"])
    notes = {
        **report.about(machine),
        "shape": f"1 rank, {TOKENS} tokens, hidden {HIDDEN}, top-{TOPK} of {EXPERTS} experts",
        "p10, p50, p90": "time of a call whose operation is left out: the package's own",
        "slow": "p50 of the slowest of the rounds",
        "among": "time of a call less its time in the library, median; library: that time",
        "instructions": "of a call whose operation is left out",
    }
    report.show(notes, UNITS, rows)
    if given.parts:
        report.show(host_parts.NOTES, host_parts.UNITS, parts(machine))
    if given.json:
        report.write(given.json, "host", notes, UNITS, rows)
    over = [row["op"] for row in rows if row["limit"] and row["p50"] > row["limit"]]
    told = f"over its limit: {', '.join(over)}" if over else "all within their limits"
    print(f"# result: {told}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
