# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of the package, in worlds of processes, and prints the house's lines: run.py
[MODULE...]."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Module, number of ranks, ranks that end before the test does.
WORLDS = [
    ("test_arguments", 1, ()),
    ("test_routes", 4, ()),
    ("test_low_latency", 4, ()),
    ("test_gradients", 4, ()),
    ("test_compiled", 2, ()),
    ("test_torch_compile", 2, ()),
    ("test_graphs", 4, ()),
    ("test_tools", 1, ()),
    ("test_deep_ep_buffer", 1, ()),
    ("test_deep_ep_streams", 1, ()),
    ("test_deep_ep_normal", 4, ()),
    ("test_deep_ep_nodes", 4, ()),
    ("test_deep_ep_low_latency", 4, ()),
    ("test_deep_ep_masks", 4, ()),
    ("test_deep_ep_elastic", 4, ()),
    ("test_deep_ep_references", 4, ()),
    ("test_deep_ep_callers", 4, ()),
    ("test_lost", 4, (3,)),
    ("test_deep_ep_lost", 4, (3,)),
]
SECONDS = 240
SEVERITY = ("ok", "skip", "not ok")


def run(module, size, lost):
    """[name, outcome, text] of every test: the worst of all ranks, and what each of them says."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            subprocess.Popen(
                [sys.executable, str(HERE / "world.py"), module, str(rank), str(size), folder],
                stdin=subprocess.DEVNULL,
                cwd=HERE,
            )
            for rank in range(size)
        ]
        for process in ranks:
            try:
                process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
        tests = {}
        for rank in set(range(size)) - set(lost):
            result = Path(folder, f"result.{rank}")
            if not result.exists():
                tests[f"{module} rank {rank}"] = (
                    "not ok",
                    f"exit status {ranks[rank].wait()} and no result",
                )
                continue
            for name, outcome, text in json.loads(result.read_text()):
                before, texts = tests.get(name, ("ok", ""))
                if outcome == "ok":
                    tests.setdefault(name, (outcome, ""))
                elif before != "skip" or outcome != "skip":  # why it is skipped is said once
                    worst = max(before, outcome, key=SEVERITY.index)
                    tests[name] = (worst, f"{texts}rank {rank}: {text}\n")
    return tests


def main(modules):
    count = {"ok": 0, "not ok": 0, "skip": 0}
    for module, size, lost in WORLDS:
        if modules and module not in modules:
            continue
        for name, (outcome, text) in sorted(run(module, size, lost).items()):
            count[outcome] += 1
            if outcome != "ok":
                print("\n".join(f"# {line}" for line in text.splitlines()))
            print(
                f"{outcome} {module[5:].replace('_', ' ')}: {name[5:].replace('_', ' ')}",
                flush=True,
            )
    skipped = f", {count['skip']} skipped" if count["skip"] else ""
    print(f"{count['ok']} passed, {count['not ok']} failed{skipped}")
    return count["not ok"] != 0


if __name__ == "__main__":
    os.environ.setdefault("TERN_LOG", "error")
    sys.exit(main(sys.argv[1:]))
