# SPDX-License-Identifier: Apache-2.0
"""tern.bench and tern.plot, in a world of one rank."""

import contextlib
import io
import json
import math
import os
import tempfile
import unittest
from pathlib import Path
from unittest import mock
from xml.etree import ElementTree

import torch

from tern import bench, plot, report

RESULTS = Path(__file__).resolve().parents[2] / "bench/results"
SVG = "{http://www.w3.org/2000/svg}"


class Tools(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def draw(self, *files):
        """The drawing's elements."""
        path = Path(self.folder.name, "out.svg")
        self.assertEqual(plot.main([*map(str, files), "-o", str(path)]), 0)
        return ElementTree.parse(path).getroot()

    def refused(self, text, sentence):
        path = Path(self.folder.name, "in.json")
        path.write_text(text)
        with contextlib.redirect_stderr(io.StringIO()) as told:
            self.assertEqual(plot.main([str(path), "-o", str(path) + ".svg"]), 1)
        self.assertIn(sentence, told.getvalue())
        self.assertFalse(Path(str(path) + ".svg").exists())

    def report(self, rows, kind="ep", **notes):
        path = Path(self.folder.name, f"{len(os.listdir(self.folder.name))}.json")
        units = {name: "" for row in rows for name in row}
        report.write(str(path), kind, {"ranks": "4, a process each", **notes}, units, rows)
        return path

    def ep_row(self, **fields):
        return {
            **dict(tokens=4096, op="dispatch", dtype="bf16", layout="rank", ranks=4, sms=24),
            **dict(p50=500.0, remote=320.0),
            **fields,
        }

    def test_plot_places(self):
        """Twice the time is as far up anywhere; the rate and the wire are on one scale from 0."""
        rows = [self.ep_row(tokens=2**i, p50=10.0 * 2**i, remote=40.0 * i) for i in range(1, 5)]
        root = self.draw(self.report(rows, wire="320 GB/s a rank: best"))
        dots = [
            (float(dot.get("cx")), float(dot.get("cy")), dot.find(f"{SVG}title").text)
            for dot in root.iter(f"{SVG}circle")
        ]
        times = [dot for dot in dots if dot[2].endswith(" us")]
        rates = [dot for dot in dots if dot[2].endswith(" GB/s")]
        self.assertEqual(
            [dot[2].split(": ")[1] for dot in times],
            [f"{2**i} tokens, {10 * 2**i} us" for i in range(1, 5)],
        )
        for dots in (times, rates):
            steps = [(b[0] - a[0], a[1] - b[1]) for a, b in zip(dots, dots[1:])]
            for step in steps:
                self.assertAlmostEqual(step[0], steps[0][0], delta=0.2)
                self.assertAlmostEqual(step[1], steps[0][1], delta=0.2)
                self.assertGreater(step[1], 10)
        bottom = plot.TOP + plot.PANEL_H
        (wire,) = [line for line in root.iter(f"{SVG}line") if line.get("class") == "wire"]
        self.assertAlmostEqual(
            bottom - float(wire.get("y1")), 2 * (bottom - rates[-1][1]), delta=0.3
        )
        self.assertAlmostEqual((bottom - rates[1][1]) / (bottom - rates[0][1]), 2, delta=0.02)

    def test_plot_of_what_is_recorded(self):
        """Every row is there, nothing is outside the drawing, peers on as many ranks are."""
        day = RESULTS / "2026-11-21-4xH200"
        names = ("ep_bf16", "ep_t1", "ep_t128", "ep_t8192", "ep_fp8", "wire")
        files = [day / f"{name}.json" for name in names]
        root = self.draw(*files)
        width, height = float(root.get("width")), float(root.get("height"))
        for element in root.iter():
            for name in ("cx", "x", "x1", "x2"):
                self.assertTrue(0 <= float(element.get(name, 0)) <= width)
            for name in ("cy", "y", "y1", "y2"):
                self.assertTrue(0 <= float(element.get(name, 0)) <= height)
        titles = [title.text for title in root.iter(f"{SVG}title")]
        fastest = {}
        for row in (row for path in files[:-1] for row in json.loads(path.read_text())["rows"]):
            dtype = "bf16" if row["op"] in ("route", "combine") else row["dtype"]
            key = (f"{row['op']} {dtype}, 4 ranks", f": {row['tokens']} tokens, ")
            fastest[key] = min(row["p50"], fastest.get(key, math.inf))
        self.assertGreaterEqual(len(fastest), 18)
        for (words, place), us in fastest.items():
            end = f"{place}{us:.6g} us"
            self.assertTrue(any(t.startswith(words) and t.endswith(end) for t in titles), end)
        peers = [t for t in titles if "DeepEP" in t and t.endswith(" us")]
        self.assertEqual(len(peers), 5)
        self.assertIn("combine bf16, 4 ranks, DeepEP V1 (567632d): 4096 tokens, 585 us", peers)
        low = self.draw(RESULTS / "2026-11-21-2xH200/ll_graph.json")
        titles = [title.text for title in low.iter(f"{SVG}title")]
        self.assertFalse([t for t in titles if "DeepEP" in t])  # none on two ranks
        self.assertTrue([t for t in titles if t.startswith("low latency dispatch fp8, 2 ranks")])

    def test_plot_refuses(self):
        self.refused("{", "Expecting")
        self.refused('{"kind": "nic", "notes": {}, "rows": []}', "of kind 'nic'")
        self.refused('{"kind": "ep", "notes": {}, "rows": []}', "no dispatch and no combine")
        self.refused('{"kind": "ep", "notes": {}, "rows": [{"p50": 1}]}', "'op'")

    def test_numbers_of_json(self):
        path = self.report([{"p50": math.nan, "op": "x"}, {"p50": 1.5}])
        rows = json.loads(path.read_text())["rows"]
        self.assertEqual(rows, [{"p50": None, "op": "x"}, {"p50": 1.5, "op": None}])

    def bench(self, *args):
        """Exit status, and rows."""
        path = Path(self.folder.name, "bench.json")
        small = ["--machine", "cpu", "--tokens", "4", "--ll-tokens", "2", "--hidden", "128"]
        with contextlib.redirect_stdout(io.StringIO()):
            status = bench.main([*small, "--iterations", "3", "--json", str(path), *args])
        return status, json.loads(path.read_text())["rows"]

    def test_bench(self):
        status, rows = self.bench()
        self.assertEqual(status, 0)
        self.assertEqual(
            [(row["op"], row["tokens"]) for row in rows],
            [("dispatch", 4), ("combine", 4), ("ll_dispatch", 2), ("ll_combine", 2)],
        )
        for row in rows:
            self.assertTrue(0 < row["p10"] <= row["p50"] <= row["p90"])
            self.assertEqual((row["remote"], row["#wrong"], row["ranks"]), (0, 0, 1))
        root = self.draw(Path(self.folder.name, "bench.json"))
        self.assertGreaterEqual(len(list(root.iter(f"{SVG}circle"))), 4)

    def test_bench_tells_its_options(self):
        told = io.StringIO()
        with contextlib.redirect_stdout(told), self.assertRaises(SystemExit) as end:
            bench.main(["--help"])
        self.assertEqual(end.exception.code, 0)
        text = " ".join(told.getvalue().split())
        for option in ("--machine", "--tokens", "--ll-tokens", "--iterations", "--json"):
            self.assertIn(option, text)
        for words in ("default 128,4096, cpu 16,64", "default 7168, cpu 512", "default 50, cpu 20"):
            self.assertIn(words, text)

    def test_bench_sees_what_is_wrong(self):
        real = bench.EP.ll_combine

        def off(self, *args, **keywords):
            sums, hook = real(self, *args, **keywords)
            sums.view(torch.int16)[1, 5] ^= 1
            return sums, hook

        with mock.patch.object(bench.EP, "ll_combine", off):
            status, rows = self.bench()
        self.assertEqual(status, 1)
        self.assertEqual([row["#wrong"] for row in rows], [0, 0, 1, 1])

    def test_bench_runs_the_program(self):
        fake = Path(self.folder.name, "tern-bench")
        fake.write_text('#!/bin/sh\necho "$@" > "$0.told"\nexit 7\n')
        fake.chmod(0o755)
        with mock.patch.object(bench, "program", lambda: str(fake)):
            self.assertEqual(bench.main(["ep", "--tokens", "8"]), 7)
        self.assertEqual(Path(f"{fake}.told").read_text(), "ep --tokens 8\n")
        with mock.patch.object(bench, "program", lambda: None):
            with contextlib.redirect_stderr(io.StringIO()) as told:
                self.assertEqual(bench.main(["ll"]), 1)
        self.assertIn("tern-bench is neither", told.getvalue())

    def test_host_cost_is_an_option(self):
        with mock.patch("tern.host_cost.main", lambda args: len(args)):
            self.assertEqual(bench.main(["--host-cost", "--machine", "cpu"]), 2)
