#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What Tern aims at on GPUs with NVLink, measured and told beside the aim.

  tern-aims.py run FOLDER --ranks N   every measurement that an aim needs, into FOLDER/rN_*.json, by tern-run and
                                      tern-bench, every element compared. FOLDER is made if need be. The exit
                                      status is 1 if one of them failed; the others run all the same
  tern-aims.py report FOLDER          the aims of 8 and of 4 ranks beside what lies in FOLDER, as Markdown. The
                                      exit status is 1 if an aim is missed, 2 if there is nothing to judge,
                                      or what is judged has wrong elements, or none that were compared

Options of run: --bin FOLDER (build/release/bin); --machine auto|cuda|cpu; --only NAME[,NAME]; --list (print the
commands, run nothing); --seconds N (for each, 240). On the cpu machine there are few tokens: that is for the
commands, not for their times.

Aims are of H200: hidden 7168, top-8, 256 experts (low latency 288), uniform routing, outputs in windows, the
slowest rank. `events` is the median with an event before and behind each operation, `in a row` many of one
operation between two events, divided by their number; an aim is met by the one or the other, and it says by
which. Across domains the network is a model of a NIC in software.
"""
import argparse
import glob
import json
import os
import re
import subprocess
import sys

FAR = "--domain-size {half} --transport softnic --nic-gbps 400 --nic-latency-us 2 --queues 42 --nic-sms 42"
# Name: options of tern-bench. Those across domains are of one process, the others of a process a rank.
RUNS = {
    "wire": "wire",
    "ep_sms24": "ep --sms 24 --tokens 128,4096",
    "ep_fp8_sms24": "ep --sms 24 --tokens 128,4096 --dtype fp8",
    "ep_sms16": "ep --sms 16 --tokens 4096",
    "ep_sms8": "ep --sms 8 --tokens 4096",
    "ep_tokens": "ep --sms 24 --tokens 8192,32768 --iters 20",
    "ep_skew130": "ep --sms 24 --tokens 4096 --skew 130",
    "ep_tensor": "ep --sms 24 --tokens 4096 --out tensor",
    "ep_push": "ep --sms 24 --tokens 128,4096 --combine push",
    "ep_pull": "ep --sms 24 --tokens 128,4096 --combine pull",
    "ep_tensor_drain": "ep --sms 24 --tokens 128,4096 --out tensor --drain 1",
    "ep_fp8_tensor_drain": "ep --sms 24 --tokens 4096 --dtype fp8 --out tensor --drain 1",
    "ep_tensor_push": "ep --sms 24 --tokens 4096 --out tensor --combine push",
    "ll_at_dispatch": "ll --graph --weights dispatch",
    "ll_at_combine": "ll --graph",
    "ll_ahead": "ll --graph --weights ahead",
    "ep_far": "ep --sms 12 --tokens 4096 " + FAR,
    "ep_far_fp8": "ep --sms 12 --tokens 4096 --dtype fp8 " + FAR,
    "ll_far": "ll --tokens 128 --weights dispatch --sms 100 "
              + FAR.replace("queues 42", "queues 16").replace("sms 42", "sms 32"),
}
COPY_SLACK = 1.05  # of a device copy, for rows that are copied besides


def fail(text):
    print("tern-aims: " + text, file=sys.stderr)
    sys.exit(2)


def command(name, options):
    """The words that run measurement `name`."""
    words = RUNS[name].format(half=max(options.ranks // 2, 1)).split()
    if options.machine == "cpu":
        for i, word in enumerate(words):
            if words[i - 1] == "--tokens":
                words[i] = ",".join(str(max(int(n) // 1024, 1)) for n in word.split(","))
        for option in ("--sms", "--queues", "--nic-sms"):
            if option in words:
                at = words.index(option)
                del words[at:at + 2]
        if words[0] == "ll" and "--tokens" not in words:
            words += ["--tokens", "1,2"]
        words += ["--iters", "1"]
    bench = [os.path.join(options.bin, "tern-bench")] + words + ["--machine", options.machine]
    bench += ["--json", os.path.join(options.folder, "r%d_%s.json" % (options.ranks, name))]
    if "--transport" in words:
        return bench + ["--ranks", str(options.ranks)]
    return [os.path.join(options.bin, "tern-run"), "-n", str(options.ranks)] + bench


def run(options):
    names = options.only.split(",") if options.only else list(RUNS)
    unknown = [name for name in names if name not in RUNS]
    if unknown:
        fail("no measurement is called %s; there are %s" % (unknown[0], ", ".join(RUNS)))
    if options.ranks < 2 or options.ranks % 2:
        fail("--ranks is %d; it must be even: two domains have half of them each" % options.ranks)
    if not options.list:
        os.makedirs(options.folder, exist_ok=True)
    failed = 0
    for name in names:
        words = command(name, options)
        if options.list:
            print(" ".join(words))
            continue
        try:
            done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  errors="replace", timeout=options.seconds)
            status, text = done.returncode, done.stdout
        except subprocess.TimeoutExpired as late:
            status = "none after %d s" % options.seconds
            text = (late.stdout or b"").decode(errors="replace")
        except OSError as error:
            fail("%s: %s" % (words[0], error.strerror))
        lines = text.strip().splitlines() or [""]
        end = "done" if status == 0 else "exit status %s: %s" % (status, lines[-1])
        print("%-15s %s" % (name, end), flush=True)
        failed += status != 0
    return 1 if failed else 0


def must_be_right(what, row, elements="elements"):
    """Times of what was wrong, or not looked at, meet no aim."""
    if row["#wrong"] is None:
        fail("%s: no %s were compared" % (what, elements))
    if row["#wrong"] != 0:
        fail("%s: %d %s are wrong" % (what, row["#wrong"], elements))


class Missing(Exception):
    """A measurement that is not there; why."""


class Measured:
    """The files of one number of ranks: name to rows."""

    def __init__(self, folder, ranks):
        self.ranks, self.rows, self.hosts = ranks, {}, set()
        for path in glob.glob(os.path.join(glob.escape(folder), "r%d_*.json" % ranks)):
            try:
                with open(path, encoding="utf-8") as file:
                    whole = json.load(file)
                rows, notes = whole["rows"], whole["notes"]
                self.hosts.add("%s; %s" % (notes["machine"], notes["ranks"]))
            except (OSError, ValueError, KeyError) as error:
                fail("%s: %s" % (path, error))
            self.rows[re.sub(r"^r\d+_|\.json$", "", os.path.basename(path))] = rows

    def file(self, name):
        if name not in self.rows:
            raise Missing("no r%d_%s.json" % (self.ranks, name))
        return self.rows[name]

    def find(self, name, op, tokens):
        for row in self.file(name):
            if row.get("op") == op and row["tokens"] == tokens:
                return row
        raise Missing("no %s of %d tokens in r%d_%s.json" % (op, tokens, self.ranks, name))

    def row(self, name, op, tokens):
        # What a pair moved is counted by its parts.
        for part in ("dispatch", "combine") if op == "pair" else (op,):
            must_be_right("%s: %s of %d tokens" % (name, part, tokens), self.find(name, part, tokens))
        return self.find(name, op, tokens)

    def us(self, name, op, tokens=4096):
        """By events, in a row."""
        row = self.row(name, op, tokens)
        return row["p50"], row["in-a-row"]

    def copy(self, name, op):
        """What a device copy of the rows of other ranks takes, in us."""
        row = self.row(name, op, 4096)
        for local in self.file("wire"):
            if local["test"] == "local":
                must_be_right("wire: local", local, "bytes")
                return row["logical-bytes"] * row["remote"] / row["logical"] / (local["rate"] * 1e3)
        raise Missing("no device copy in r%d_wire.json" % self.ranks)


def time_of(name, op, tokens=4096):
    return lambda m: m.us(name, op, tokens)


def share(name, op, column):
    """Of a floor or the wire, in %; `column` is by events."""
    def find(m):
        row = m.row(name, op, 4096)
        return row[column], row[column] * row["p50"] / row["in-a-row"]
    return find


def ratio(above, below, scale):
    """Of two times, each a (name, op, tokens), in %, times `scale`."""
    return lambda m: tuple(100 * scale * a / b for a, b in zip(m.us(*above), m.us(*below)))


def both(name, tokens):
    return lambda m: tuple(d + c for d, c in zip(m.us(name, "dispatch", tokens),
                                                 m.us(name, "combine", tokens)))


def extra(name, op, base="ep_sms24"):
    """What tensors in no window take longer, in % of a device copy of the rows that are copied."""
    return lambda m: tuple(100 * (t - w) / m.copy(base, op)
                           for t, w in zip(m.us(name, op), m.us(base, op)))


def beyond(name, op):
    """Over 1.25 times the model's floor, in us."""
    def find(m):
        floor = 1.25 * m.row(name, op, 128)["floor"]
        return tuple(t - floor for t in m.us(name, op, 128))
    return find


MOST, LEAST = "at most", "at least"
# What, unit, which way, aim with 8 ranks and with 4, where it is found.
AIMS = [
    ("dispatch BF16, 24 SMs", "us", MOST, 830, 475, time_of("ep_sms24", "dispatch")),
    ("dispatch BF16, of the wire", "%", LEAST, 95, 95, share("ep_sms24", "dispatch", "wire")),
    ("dispatch FP8, 24 SMs", "us", MOST, 430, 250, time_of("ep_fp8_sms24", "dispatch")),
    ("dispatch FP8, of the wire", "%", LEAST, 95, 95, share("ep_fp8_sms24", "dispatch", "wire")),
    ("combine BF16, 24 SMs", "us", MOST, 870, 500, time_of("ep_sms24", "combine")),
    ("combine BF16, of the wire", "%", LEAST, 92, 92, share("ep_sms24", "combine", "wire")),
    ("combine BF16 that pulls, 24 SMs", "us", MOST, 870, 500, time_of("ep_pull", "combine")),
    ("combine BF16 that pushes, 24 SMs", "us", MOST, 870, 500, time_of("ep_push", "combine")),
    ("combine BF16 that pushes, of the wire", "%", LEAST, 92, 92, share("ep_push", "combine", "wire")),
    ("dispatch with 8 SMs, of the speed with 24", "%", LEAST, 90, 90,
     ratio(("ep_sms24", "dispatch"), ("ep_sms8", "dispatch"), 1)),
    ("combine with 16 SMs, of the speed with 24", "%", LEAST, 90, 90,
     ratio(("ep_sms24", "combine"), ("ep_sms16", "combine"), 1)),
    ("route, 4096 tokens", "us", MOST, 25, 25, time_of("ep_sms24", "route")),
    ("128 tokens, dispatch BF16 and combine", "us", MOST, 60, 60, both("ep_sms24", 128)),
    ("128 tokens, dispatch FP8 and combine", "us", MOST, 60, 60, both("ep_fp8_sms24", 128)),
]
for _op in ("dispatch", "combine"):
    for _tokens in (8192, 32768):
        AIMS.append(("%s, %d tokens, a token, of 4096" % (_op, _tokens), "%", MOST, 100, 100,
                     ratio(("ep_tokens", _op, _tokens), ("ep_sms24", _op), 4096 / _tokens)))
    AIMS.append(("%s, a rank with 1.3 times the mean, of uniform" % _op, "%", MOST, 130, 130,
                 ratio(("ep_skew130", _op), ("ep_sms24", _op), 1)))
    AIMS.append(("%s, tensors in no window, extra, of a device copy" % _op, "%", MOST, 100 * COPY_SLACK,
                 100 * COPY_SLACK, extra("ep_tensor", _op)))
for _what, _name, _op, _base in (("dispatch that drains", "ep_tensor_drain", "dispatch", "ep_sms24"),
                                 ("dispatch FP8 that drains", "ep_fp8_tensor_drain", "dispatch", "ep_fp8_sms24"),
                                 ("combine that pushes", "ep_tensor_push", "combine", "ep_sms24")):
    AIMS.append((_what + ", tensors, extra, of a device copy", "%", MOST, 100 * COPY_SLACK, 100 * COPY_SLACK,
                 extra(_name, _op, _base)))
for _what, _name, _op, _tokens, _eight, _four in (
        ("128 tokens, dispatch FP8", "ll_at_dispatch", "dispatch", 128, 25, 19),
        ("128 tokens, combine, weights at dispatch", "ll_at_dispatch", "combine", 128, 38, 23),
        ("128 tokens, combine, weights at combine", "ll_at_combine", "combine", 128, 52, 38),
        ("128 tokens, combine, weights given there that go ahead", "ll_ahead", "combine", 128, 42, 27),  # of weights at dispatch, and 4
        ("128 tokens, pair", "ll_at_dispatch", "pair", 128, 64, 43),
        ("one token, dispatch", "ll_at_dispatch", "dispatch", 1, 8, 7),
        ("one token, combine, weights at dispatch", "ll_at_dispatch", "combine", 1, 8, 7),
        ("one token, combine, weights at combine", "ll_at_combine", "combine", 1, 8, 7)):
    AIMS.append(("low latency, " + _what, "us", MOST, _eight, _four, time_of(_name, _op, _tokens)))
for _what, _name, _op in (("dispatch BF16", "ep_far", "dispatch"), ("dispatch FP8", "ep_far_fp8", "dispatch"),
                          ("combine BF16", "ep_far", "combine")):
    AIMS.append(("two domains, 12 SMs, %s, of the model" % _what, "%", LEAST, 92, 92,
                 share(_name, _op, "of-floor")))
for _op in ("dispatch", "combine"):
    AIMS.append(("two domains, low latency, 128 tokens, %s, beyond 1.25 of the floor" % _op, "us", MOST, 10,
                 10, beyond("ll_far", _op)))


def judge(values, way, aim):
    """Which of (by events, in a row) meets the aim."""
    met = [value <= aim if way == MOST else value >= aim for value in values]
    return "events" if met[0] else "in a row" if met[1] else "no"


def report(options):
    missed = told = 0
    for column, ranks in ((3, 8), (4, 4)):
        measured = Measured(options.folder, ranks)
        if not any(name in RUNS for name in measured.rows):
            continue
        print("%s%d GPUs, aims of H200. Measured on: %s\n\n| | aim | events | in a row | met by |\n"
              "|---|---|---|---|---|" % ("\n" if told else "", ranks, "; and ".join(sorted(measured.hosts))))
        for aim in AIMS:
            what, unit, way, find = aim[0], aim[1], aim[2], aim[5]
            try:
                values = find(measured)
            except Missing as missing:
                print("| %s | %s %g %s | | | %s |" % (what, way, aim[column], unit, missing))
                continue
            met = judge(values, way, aim[column])
            print("| %s | %s %g %s | %.1f | %.1f | %s |" % ((what, way, aim[column], unit) + values + (met,)))
            told += 1
            missed += met == "no"
    if not told:
        fail("%s has nothing of 8 or of 4 ranks to judge: r8_NAME.json or r4_NAME.json, NAME one of %s" % (
            options.folder, ", ".join(RUNS)))
    print("\n%d aims met, %d missed" % (told - missed, missed))
    return 1 if missed else 0


def main():
    parser = argparse.ArgumentParser(usage="tern-aims.py run|report FOLDER [OPTION VALUE]...", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("run", "report"))
    parser.add_argument("folder")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--bin", default="build/release/bin")
    parser.add_argument("--machine", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--only", default="")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--seconds", type=int, default=240)
    options = parser.parse_args()
    return run(options) if options.action == "run" else report(options)


if __name__ == "__main__":
    sys.exit(main())
