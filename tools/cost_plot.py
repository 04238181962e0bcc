# SPDX-License-Identifier: Apache-2.0
"""What the cost model says of 16 to 2048 ranks, as rows and as a drawing: an SVG written by hand, so that
nothing need be installed. Domains of 8 GPUs; 256 experts, and one a rank where there are more ranks than
that."""
import sys
sys.dont_write_bytecode = True

import cost_model as model

RANKS = [16, 32, 64, 128, 256, 512, 1024, 2048]
DOMAIN, TOKENS, LL_TOKENS, SMS = 8, 4096, 128, 12
GROUPS = (8, 4)  # as routers that limit a token to 4 of 8 groups of experts

NETWORKS = [("railed", model.railed), ("fat tree", model.fat_tree)]
ROUTINGS = [("4 of 8 groups", GROUPS), ("unlimited", None)]


def shape_of(ranks, tokens, groups, sms=SMS):
    return model.Shape(ranks, tokens, DOMAIN, experts=max(256, ranks), sms=sms, groups=groups)


def forecast(ranks, groups, connect):
    """Times of one size: dispatch FP8, combine BF16; low latency dispatch FP8 and combine BF16 of sums,
    each as it is, and railed."""
    network = connect(ranks, DOMAIN)
    big, small = shape_of(ranks, TOKENS, groups), shape_of(ranks, LL_TOKENS, groups, 132)
    return [model.dispatch(big, "fp8", network=network), model.combine(big, network=network),
            model.ll_dispatch(small, network=network), model.ll_combine(small, "dispatch", network=network),
            model.ll_dispatch(small, network=network, is_railed=True),
            model.ll_combine(small, "dispatch", network=network, is_railed=True)]


def table():
    """Lines of Markdown."""
    lines = ["| ranks | network | routing | other domains a token | dispatch FP8 | combine BF16 "
             "| LL dispatch | LL combine | LL with `ll_rail`: dispatch, combine |", "|---|---|---|---|---|---|---|---|---|"]
    for ranks in RANKS:
        for name, connect in NETWORKS:
            for routing, groups in ROUTINGS:
                times = forecast(ranks, groups, connect)
                far = shape_of(ranks, TOKENS, groups).domain_rows()
                lines.append("| %d | %s | %s | %.2f | %.0f us | %.0f us | %.1f us | %.1f us "
                             "| %.1f, %.1f us |" % (ranks, name, routing, far, *times))
    return lines


def modelled_table():
    """Domains over the software NIC on GPUs, 50 GB/s and 2 us one way, any routing; lines of Markdown."""
    lines = ["| ranks | domains of | dispatch FP8 | dispatch BF16 | combine BF16 | LL dispatch "
             "| LL combine |", "|---|---|---|---|---|---|---|"]
    for ranks, domain in [(4, 2), (8, 4), (8, 2)]:
        network = model.modelled()
        big = model.Shape(ranks, TOKENS, domain, sms=SMS)
        small = model.Shape(ranks, LL_TOKENS, domain, sms=132)
        times = (model.dispatch(big, "fp8", network=network), model.dispatch(big, network=network),
                 model.combine(big, network=network), model.ll_dispatch(small, network=network),
                 model.ll_combine(small, "dispatch", network=network))
        lines.append("| %d | %d | %.0f us | %.0f us | %.0f us | %.1f us | %.1f us |"
                     % (ranks, domain, *times))
    return lines


# ---- The drawing -------------------------------------------------------------------------------------------

WIDTH, HEIGHT, LEFT, TOP, PANEL_W, PANEL_H, GAP = 960, 420, 64, 56, 370, 280, 90
COLOURS = {"railed": "#0b5394", "fat tree": "#b45f06"}
DASHES = {"4 of 8 groups": "", "unlimited": ' stroke-dasharray="6 4"'}


def _text(x, y, words, anchor="middle", size=12):
    return '<text x="%.1f" y="%.1f" font-size="%d" text-anchor="%s">%s</text>' % (x, y, size, anchor, words)


def _across(left, i):
    return left + PANEL_W * i / (len(RANKS) - 1)


def _axes(left, title, most):
    out = [_text(left + PANEL_W / 2, TOP - 16, title, size=14),
           '<rect x="%d" y="%d" width="%d" height="%d" fill="none" stroke="#444"/>'
           % (left, TOP, PANEL_W, PANEL_H)]
    for i, ranks in enumerate(RANKS):
        out.append(_text(_across(left, i), TOP + PANEL_H + 18, ranks))
    for i in range(6):
        y = TOP + PANEL_H * (1 - i / 5)
        out.append('<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#ddd"/>' % (left, y, left + PANEL_W, y))
        out.append(_text(left - 8, y + 4, "%g" % (most * i / 5), "end"))
    out.append(_text(left + PANEL_W / 2, TOP + PANEL_H + 38, "ranks, domains of %d" % DOMAIN))
    out.append('<text x="%d" y="%d" font-size="12" text-anchor="middle" '
               'transform="rotate(-90 %d %d)">us</text>'
               % (left - 46, TOP + PANEL_H / 2, left - 46, TOP + PANEL_H / 2))
    return out


def _panel(left, title, picks, most):
    """picks: (index in a forecast, width of the line)."""
    out = _axes(left, title, most)
    for name, connect in NETWORKS:
        for routing, groups in ROUTINGS:
            times = [forecast(ranks, groups, connect) for ranks in RANKS]
            for index, width in picks:
                points = " ".join("%.1f,%.1f" % (_across(left, i), TOP + PANEL_H * (1 - t[index] / most))
                                  for i, t in enumerate(times))
                out.append('<polyline points="%s" fill="none" stroke="%s" stroke-width="%.1f"%s/>'
                           % (points, COLOURS[name], width, DASHES[routing]))
    return out


def _legend():
    out, x, y = [], LEFT, HEIGHT - 14
    for name, _ in NETWORKS:
        for routing, _ in ROUTINGS:
            out.append('<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="%s" stroke-width="2"%s/>'
                       % (x, y - 4, x + 30, y - 4, COLOURS[name], DASHES[routing]))
            out.append(_text(x + 36, y, "%s, %s" % (name, routing), "start"))
            x += 190
    out.append(_text(WIDTH - 8, y, "thin: dispatch, thick: combine", "end"))
    return out


def drawing():
    parts = ['<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif">'
             % (WIDTH, HEIGHT), '<rect width="100%" height="100%" fill="white"/>']
    parts += _panel(LEFT, "%d tokens, FP8 out, BF16 home, %d SMs" % (TOKENS, SMS),
                    [(0, 1.2), (1, 2.6)], 12000)
    parts += _panel(LEFT + PANEL_W + GAP, "low latency, %d tokens" % LL_TOKENS, [(2, 1.2), (3, 2.6)], 400)
    return "\n".join(parts + _legend() + ["</svg>"]) + "\n"
