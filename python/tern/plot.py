# SPDX-License-Identifier: Apache-2.0
"""python -m tern.plot FILES... -o out.svg: latency and bandwidth against tokens.

FILES are the JSON of tern-bench (ep, ll, wire) or of python -m tern.bench. A line is an operation
of one shape, whichever files its points come from; of several measurements of a point it has the
fastest. The wire is the best all-to-all push that the same runs measured. Peers, below, are drawn
beside runs on as many ranks. The SVG is written by hand, so that nothing need be installed.
"""

import argparse
import json
import re
import sys
from math import ceil, floor, log10
from pathlib import Path
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple
from xml.sax.saxutils import escape


class Point(NamedTuple):
    tokens: int
    us: float
    rate: Optional[float]  # GB/s of rows that leave a rank; None: not known


class Peer(NamedTuple):
    """What another library took: kernel times of its own tests, hidden 7168, top-8, uniform."""

    who: str
    kind: str  # of tern-bench: ep or ll
    op: str
    dtype: str
    ranks: int
    tokens: int
    us: float
    megabytes: float  # that leave a rank


# Measured on hosts with 4 and 8 H200 (driver 580.159, CUDA 13.0, NV18), each library by its own
# unchanged tests in one run: V1 is DeepEP 567632d (legacy kernels, 24 SMs), V2 DeepEP dd758ca
# (kernel plus epilogue; ep 24, ll 64 SMs). 256 experts; low latency 288. Of a range the middle.
_V1, _V2 = "DeepEP V1 (567632d)", "DeepEP V2 (dd758ca)"
PEERS = (
    Peer(_V1, "ep", "dispatch", "fp8", 8, 4096, 494, 140),
    Peer(_V1, "ep", "dispatch", "bf16", 8, 4096, 935, 272),
    Peer(_V1, "ep", "combine", "bf16", 8, 4096, 949, 272),
    Peer(_V1, "ep", "dispatch", "fp8", 4, 4096, 428, 83),
    Peer(_V1, "ep", "dispatch", "bf16", 4, 4096, 809, 159),
    Peer(_V1, "ep", "combine", "bf16", 4, 4096, 585, 159),
    Peer(_V1, "ll", "dispatch", "fp8", 8, 128, 39.65, 6.6),
    Peer(_V1, "ll", "combine", "bf16", 8, 128, 66.5, 12.9),
    Peer(_V1, "ll", "dispatch", "fp8", 4, 128, 37.8, 0),
    Peer(_V1, "ll", "combine", "bf16", 4, 128, 56.0, 0),
    Peer(_V2, "ep", "dispatch", "fp8", 4, 4096, 287 + 68, 83),
    Peer(_V2, "ep", "combine", "bf16", 4, 4096, 547 + 73, 159),
    Peer(_V2, "ll", "dispatch", "fp8", 4, 128, 21.3 + 3.4, 0),
    Peer(_V2, "ll", "combine", "bf16", 4, 128, 25.5 + 6.5, 0),
)

Name = Tuple[str, str, str, int, str]  # kind, op, dtype, ranks, what else


class Measured:
    """What the files say: points by line, and wires in GB/s by ranks."""

    def __init__(self) -> None:
        self.lines: Dict[Name, Dict[int, Point]] = {}
        self.wires: Dict[int, float] = {}

    def read(self, path: str) -> None:
        report = json.loads(Path(path).read_text())
        kind, notes = report.get("kind"), report.get("notes", {})
        if kind not in ("ep", "ll", "wire", "python"):
            raise ValueError(f"{path} is of kind {kind!r}: ep, ll, wire and python can be drawn")
        told = re.match(r"\s*(\d+)", notes.get("ranks", "")) or [0, 0]
        ranks = int(told[1])
        wire = re.match(r"([\d.]+) GB/s", notes.get("wire", ""))
        if wire:
            self._wire(ranks, float(wire[1]))
        for row in report["rows"]:
            if kind == "wire":
                if row["test"] == "push" and row["best"]:
                    self._wire(ranks, row["best"])
            elif row["p50"]:
                self._point(kind, row)

    def _wire(self, ranks: int, rate: float) -> None:
        self.wires[ranks] = max(rate, self.wires.get(ranks, 0))

    def _point(self, kind: str, row: Dict[str, Any]) -> None:
        op, more, rate = row["op"], [], row.get("remote")
        if kind == "python":
            kind, op = ("ll", op[3:]) if op.startswith("ll_") else ("ep", op)
            dtype, more = row["dtype"], ["from Python"]
        elif kind == "ll":
            fp8 = op.startswith("dispatch") and row["cast"] != "none"
            dtype, rate = ("fp8" if fp8 else "bf16"), (rate or 0) / row["p50"] or None
            more = [f"weights at {row['weights']}"]
            more += ["by rank"] if row["layout"] == "rank" else []
            more += ["hook"] if row["hook"] else []
            more += [row["compression"]] if row["compression"] != "none" else []
        else:
            dtype = "bf16" if op in ("combine", "route") else row["dtype"]
            more = ["by expert"] if row["layout"] == "expert" else []
            more += [f"{row['sms']} SMs"]
        domains = int(row.get("domains") or 1)
        more += [f"{domains} domains"] if domains > 1 else []
        name = (kind, op, dtype, row["ranks"], ", ".join(more))
        points = self.lines.setdefault(name, {})
        # Of several measurements of one point the fastest.
        if row["tokens"] not in points or points[row["tokens"]].us > row["p50"]:
            points[row["tokens"]] = Point(row["tokens"], row["p50"], rate or None)

    def peers(self) -> List[Peer]:
        """Those of the same operations on as many ranks."""
        have = {name[:4] for name in self.lines}
        return [p for p in PEERS if (p.kind, p.op, p.dtype, p.ranks) in have]


# ---- The drawing ---------------------------------------------------------------------------------

WIDTH, LEFT, TOP, PANEL_W, PANEL_H, GAP, LINE = 1060, 64, 44, 420, 330, 90, 18
COLOURS = ("#0b5394", "#b45f06", "#38761d", "#741b47", "#351c75", "#990000", "#134f5c", "#7f6000")


class _Axis:
    """Logarithmic, or from 0; of a panel's side of `length`."""

    def __init__(self, values: Iterable[float], length: float, is_log: bool) -> None:
        seen = [value for value in values if value > 0] or [1.0]
        self.length, self.is_log = length, is_log
        if is_log:
            self.low, self.high = floor(log10(min(seen))), ceil(log10(max(seen)))
            self.high = max(self.high, self.low + 1)
            self.ticks = [10.0**e for e in range(self.low, self.high + 1)]
        else:
            step = 10.0 ** floor(log10(max(seen)))
            step = next(s for s in (step / 5, step / 2, step, 2 * step) if max(seen) <= 6 * s)
            self.low, self.high = 0, ceil(max(seen) / step) * step
            self.ticks = [step * i for i in range(int(round(self.high / step)) + 1)]

    def at(self, value: float) -> float:
        place = log10(value) if self.is_log else value
        return self.length * (place - self.low) / (self.high - self.low)


class _Tokens(_Axis):
    """Numbers of tokens, by powers of two; 0 is no place of it."""

    def __init__(self, values: Iterable[float], length: float) -> None:
        super().__init__(values, length, True)
        seen = sorted({value for value in values if value > 0}) or [1]
        self.ticks = [2**e for e in range(0, 21) if seen[0] <= 2**e <= seen[-1]]
        self.low, self.high = log10(seen[0] * 0.8), log10(seen[-1] * 1.25)
        while len(self.ticks) > 8:
            self.ticks = self.ticks[::2]


def _text(x: float, y: float, words: Any, anchor: str = "middle", size: int = 12) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">'
        f"{escape(str(words))}</text>"
    )


def _frame(left: float, title: str, unit: str, across: _Axis, up: _Axis) -> List[str]:
    bottom = TOP + PANEL_H
    out = [
        _text(left + PANEL_W / 2, TOP - 16, title, size=14),
        f'<rect x="{left}" y="{TOP}" width="{PANEL_W}" height="{PANEL_H}" '
        'fill="none" stroke="#444"/>',
        _text(left + PANEL_W / 2, bottom + 38, "tokens a rank"),
        _text(left - 8, TOP - 16, unit, "end"),
    ]
    for tick in across.ticks:
        out.append(_text(left + across.at(tick), bottom + 18, int(tick)))
    for tick in up.ticks:
        y = bottom - up.at(tick)
        out.append(
            f'<line x1="{left}" y1="{y:.1f}" x2="{left + PANEL_W}" y2="{y:.1f}" stroke="#ddd"/>'
        )
        out.append(_text(left - 8, y + 4, f"{tick:g}", "end"))
    return out


def _dot(x: float, y: float, colour: str, words: str, is_peer: bool) -> str:
    title = f"<title>{escape(words)}</title>"
    if is_peer:
        return (
            f'<path d="M{x:.1f} {y - 6:.1f}l6 6l-6 6l-6 -6z" fill="none" stroke="{colour}" '
            f'stroke-width="2">{title}</path>'
        )
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}">{title}</circle>'


def _say(name: Name) -> str:
    kind, op, dtype, ranks, more = name
    mode = "low latency " if kind == "ll" else ""
    return f"{mode}{op} {dtype}, {ranks} ranks{', ' + more if more else ''}"


def _series(measured: Measured) -> List[Tuple[str, str, List[Point], bool]]:
    """(legend, colour, points, whether a peer's) of all that is drawn; a peer has the colour of the
    first line that it stands beside."""
    out, colours = [], {}
    for i, (name, points) in enumerate(measured.lines.items()):
        colour = COLOURS[i % len(COLOURS)]
        colours.setdefault(name[:4], colour)
        out.append((_say(name), colour, [points[t] for t in sorted(points)], False))
    for peer in measured.peers():
        name = (peer.kind, peer.op, peer.dtype, peer.ranks, peer.who)
        rate = peer.megabytes * 1e3 / peer.us or None
        out.append((_say(name), colours[name[:4]], [Point(peer.tokens, peer.us, rate)], True))
    return out


def drawing(measured: Measured) -> str:
    series = _series(measured)
    points = [point for _, _, given, _ in series for point in given if point.tokens > 0]
    if not points:
        raise ValueError("the files have no dispatch and no combine of any token")
    across = _Tokens([p.tokens for p in points], PANEL_W)
    rates = [p.rate for p in points if p.rate] + list(measured.wires.values())
    panels = (
        (LEFT, "time of the slowest rank, p50", "us", _Axis([p.us for p in points], PANEL_H, True)),
        (LEFT + PANEL_W + GAP, "rows that leave a rank", "GB/s", _Axis(rates, PANEL_H, False)),
    )
    out, bottom = [], TOP + PANEL_H
    for left, title, unit, up in panels:
        out += _frame(left, title, unit, across, up)
        if unit == "GB/s":
            for ranks, rate in measured.wires.items():
                y = bottom - up.at(rate)
                out.append(
                    f'<line class="wire" x1="{left}" y1="{y:.1f}" x2="{left + PANEL_W}" '
                    f'y2="{y:.1f}" stroke="#444" stroke-dasharray="6 4"/>'
                )
                words = f"the wire of {ranks} ranks: {rate:.0f}"
                out.append(_text(left + 6, y - 4, words, "start"))
        for words, colour, given, is_peer in series:
            places = []
            for point in given:
                value = point.us if unit == "us" else point.rate
                if value and point.tokens > 0:
                    x, y = left + across.at(point.tokens), bottom - up.at(value)
                    places.append((x, y))
                    told = f"{words}: {point.tokens} tokens, {value:.6g} {unit}"
                    out.append(_dot(x, y, colour, told, is_peer))
            if len(places) > 1:
                line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
                out.append(
                    f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.6"/>'
                )
    first = bottom + 66
    for i, (words, colour, _, is_peer) in enumerate(series):
        x, y = LEFT + (i % 2) * (PANEL_W + GAP), first + i // 2 * LINE
        out.append(_dot(x, y - 4, colour, words, is_peer))
        out.append(_text(x + 12, y, words, "start"))
    height = first + (len(series) + 1) // 2 * LINE
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        'font-family="sans-serif"><rect width="100%" height="100%" fill="white"/>'
    )
    return "\n".join([head, *out, "</svg>"]) + "\n"


def main(args: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        "python -m tern.plot", description="Latency and bandwidth against tokens, as a drawing."
    )
    told = "JSON of tern-bench (ep, ll, wire) or of python -m tern.bench"
    parser.add_argument("files", nargs="+", metavar="FILE", help=told)
    told = "the drawing, which replaces what is there"
    parser.add_argument("-o", "--output", required=True, metavar="SVG", help=told)
    given = parser.parse_args(args)
    measured = Measured()
    try:
        for path in given.files:
            measured.read(path)
        text = drawing(measured)
    except (OSError, ValueError, KeyError) as error:
        print(f"tern.plot: {error}", file=sys.stderr)
        return 1
    Path(given.output).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
