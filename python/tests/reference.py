# SPDX-License-Identifier: Apache-2.0
"""What operations mean, one row after another, in numpy: the words of tern.h and docs/numerics.md
once more. Floats are float32, in which numpy rounds every product and every sum by itself; BF16 are
their upper halves."""

import numpy as np


def bf16(values):
    """The nearest BF16, the even one of two, as float32."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def rank_rows(ids, rank, share):
    """(source, token) of each row of rank layout. ids: every rank's."""
    return [
        (s, t)
        for s, mine in enumerate(ids)
        for t, row in enumerate(mine)
        if any(e // share == rank and e >= 0 for e in row)
    ]


def expert_rows(ids, rank, share, alignment=1):
    """(source, token, choice) of each row of expert layout, None for padding; and the experts'
    first rows."""
    rows, offsets = [], []
    for expert in range(rank * share, (rank + 1) * share):
        offsets.append(len(rows))
        rows += [
            (s, t, k)
            for s, mine in enumerate(ids)
            for t, row in enumerate(mine)
            for k, e in enumerate(row)
            if e == expert
        ]
        rows += [None] * (-len(rows) % alignment)
    return rows, offsets + [len(rows)]


def total(rows, hidden, biases=()):
    """Rows and biases added in order and rounded once. With nothing to add: zeros."""
    terms = list(biases) + list(rows)
    sums = np.zeros(hidden, np.float32) if not terms else terms[0].astype(np.float32)
    for term in terms[1:]:
        sums = sums + term
    return bf16(sums)


def weighted(rows, weights, hidden):
    """Low-latency combine: products and sums in FP32, from 0."""
    sums = np.zeros(hidden, np.float32)
    for row, weight in zip(rows, weights):
        sums = sums + np.float32(weight) * row
    return bf16(sums)


def railed(rows, home, domain, hidden):
    """Likewise, of one row a rank with `ll_rail`: (rank, row) in the order of first choices. Those of
    another domain are added first, lowest rank first, where its first one stands, and rounded."""
    units = {}
    for rank, row in rows:
        near = rank // domain == home // domain
        units.setdefault((near, rank if near else rank // domain), []).append((rank, row))
    parts = [
        unit[0][1]
        if near
        else weighted([row for _, row in sorted(unit, key=lambda x: x[0])], [1] * len(unit), hidden)
        for (near, _), unit in units.items()
    ]
    return weighted(parts, [1] * len(parts), hidden)


def _e4m3_values():
    codes = np.arange(127)
    exponent, mantissa = codes >> 3, codes & 7
    return np.where(
        exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0)
    )


E4M3 = _e4m3_values()


def fp8(row):
    """A row as E4M3 codes and the FP32 scales of its 128-channel blocks."""
    codes, scales = [], []
    for block in np.split(row, range(128, len(row), 128)):
        amax = np.maximum(np.abs(block).max(), np.float32(1e-4))
        scaled = (block * (np.float32(448) / amax)).astype(np.float64)
        upper = np.minimum(np.searchsorted(E4M3, np.abs(scaled)), 126)
        lower = np.maximum(upper - 1, 0)
        down, up = np.abs(scaled) - E4M3[lower], E4M3[upper] - np.abs(scaled)
        code = np.where((down < up) | ((down == up) & (lower % 2 == 0)), lower, upper)
        codes.append(code | np.where(np.signbit(scaled), 128, 0))
        scales.append(amax / np.float32(448))
    return np.concatenate(codes).astype(np.uint8), np.array(scales, np.float32)
