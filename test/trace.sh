#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The trace that tern-trace makes of what four ranks left, of which one came late to each of five operations
# (test/trace_test.c): it is JSON, slices have a begin, an end and nest, arrows go forward in time, and in each
# operation the late rank is the one that the others waited for. Then the tool's options, and what the library
# says whose kernels have no time stamps.
set -u
cd "$(dirname "$0")/.." || exit 2
. test/house.inc

build=${TERN_BUILD:-build/release}
tool=$build/bin/tern-trace
export TERN_MACHINE=cpu

cat > "$scratch/judge.py" <<'END'
import collections, json, sys

LATE, RANKS, DELAY_US = 2, 4, 1000000
events = json.load(open(sys.argv[1]))["traceEvents"]
slices = [e for e in events if e["ph"] == "X"]
operations = ["route", "dispatch", "combine", "low-latency dispatch", "low-latency combine"]
wrong = []


def want(condition, text):
    if not condition:
        wrong.append(text)


want({e["pid"] for e in slices} == set(range(RANKS)), "not every rank has slices")
rows = collections.defaultdict(list)
for e in slices:
    want(e["dur"] >= 0 and e["ts"] >= 0, f"a slice that ends before it begins: {e}")
    rows[e["pid"], e["tid"]].append(e)
for row in rows.values():
    until = 0
    for e in sorted(row, key=lambda e: e["ts"]):
        want(e["ts"] >= until - 0.002, f"slices that overlap in one row: {e}")
        until = e["ts"] + e["dur"]
blocks = [e for e in slices if e["cat"] == "kernel"]
waits = [e for e in slices if e["cat"] == "wait"]
for w in waits:
    around = [b for b in blocks if b["pid"] == w["pid"] and b["tid"] == w["tid"] & 1023 and
              b["ts"] <= w["ts"] + 0.002 and w["ts"] + w["dur"] <= b["ts"] + b["dur"] + 0.002]
    want(around, f"a wait in no block: {w}")
for name in operations:
    want({b["pid"] for b in blocks if b["name"] == name} == set(range(RANKS)), f"{name} is not on every rank")
    for rank in set(range(RANKS)) - {LATE}:
        mine = [w for w in waits if w["pid"] == rank and w["args"]["operation"] == name]
        longest = {p: max([w["dur"] for w in mine if w["args"]["peer"] == p], default=0) for p in range(RANKS)}
        others = max(longest[p] for p in range(RANKS) if p not in (LATE, rank))
        want(longest[LATE] > 0.5 * DELAY_US, f"{name}: rank {rank} waited {longest} us")
        want(others < longest[LATE], f"{name}: rank {rank} waited {longest} us")
    longest = max([w["dur"] for w in waits if w["pid"] == LATE and w["args"]["operation"] == name], default=0)
    want(longest < DELAY_US / 2, f"{name}: the late rank waited {longest} us")
begins = {e["id"]: e for e in events if e["ph"] == "s"}
ends = {e["id"]: e for e in events if e["ph"] == "f"}
want(begins and begins.keys() == ends.keys(), "arrows without an end or a beginning")
want(all(begins[i]["ts"] <= ends[i]["ts"] for i in ends), "arrows that go back in time")
from_late = sum(begins[i]["pid"] == LATE for i in ends)
want(from_late >= len(operations) * (RANKS - 1), f"{from_late} arrows from the late rank")
for text in wrong[:20]:
    print(text)
END

# judges CASE FOLDER WHAT: the trace that a case of trace_test leaves
judges()
{
    if TERN_TRACE=$scratch/$2 "$build/test/trace_test" --case "$1" > "$scratch/log" 2>&1; then
        ok "four ranks leave a trace$3"
    else
        sed 's/^/# /' "$scratch/log"
        not_ok "four ranks leave a trace$3"
        return
    fi
    "$tool" "$scratch/$2" > "$scratch/trace.json" 2> "$scratch/errors"
    check "tern-trace takes it$3" "$scratch/errors"
    if have python3; then
        python3 "$scratch/judge.py" "$scratch/trace.json" > "$scratch/errors" 2>&1
        check "in each operation the others waited for the late rank; slices nest, arrows go forward$3" "$scratch/errors"
    else
        skip "the JSON of tern-trace$3: there is no python3"
    fi
}
judges 1 trace ""
judges 2 few ": low latency of few tokens"
judges 3 ahead ": weights ahead of a combine"

# refuses STATUS TEXT ARGUMENT...: that status, and the text on standard error
refuses()
{
    wanted=$1 text=$2
    shift 2
    "$tool" "$@" > "$scratch/out" 2> "$scratch/err"
    status=$?
    if [ $status -eq "$wanted" ] && grep -q -- "$text" "$scratch/err"; then
        ok "tern-trace $*: $text"
    else
        sed 's/^/# /' "$scratch/err"
        not_ok "tern-trace $*: status $status, expected $wanted and '$text'"
    fi
}
mkdir "$scratch/empty"
refuses 2 "unknown option --sumary" --sumary "$scratch/trace"
refuses 2 "no file or folder"
refuses 1 "$scratch/nothing: No such file" "$scratch/nothing"
refuses 1 "$scratch/missing.trace: No such file" "$scratch"/trace/tern.0.*.trace "$scratch/missing.trace"
refuses 1 "$scratch/empty: a folder without files" "$scratch/empty"
for argument in "$scratch/trace" --help --version; do
    "$tool" "$argument" 2> "$scratch/err" > /dev/full
    if [ $? -eq 1 ] && grep -q 'standard output is lost: No space left' "$scratch/err"; then
        ok "a full disk is told of: $(basename -- "$argument")"
    else
        not_ok "a full disk is told of: $(basename -- "$argument")"
    fi
done

# One warning a process, however many ranks it has, and no file.
if [ "${TERN_VARIANT:-release}" = trace ]; then
    skip "a library without time stamps: this is the variant trace"
else
    TERN_TRACE=$scratch/none "$build/examples/01_hello_two_ranks" > "$scratch/out" 2> "$scratch/err"
    if [ "$(grep -c "TERN_TRACE is $scratch/none, but .* VARIANT=trace" "$scratch/err")" = 1 ] &&
        grep -q 'met and came home' "$scratch/out" && [ ! -e "$scratch/none" ]; then
        ok "a library without time stamps says so once"
    else
        sed 's/^/# /' "$scratch/out" "$scratch/err"
        not_ok "a library without time stamps says so once"
    fi
fi
finish
