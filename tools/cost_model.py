# SPDX-License-Identifier: Apache-2.0
"""The cost model: what Tern's operations take, from a few measured numbers.

An operation takes a fixed time (launch, frame, signals, the latency of one row) and a flow: the bytes that
every rank moves, over whichever of three limits is the tightest, as all three work at once:

    wire     rows to other ranks of the domain, by the best all-to-all that kernels reach there
    issue    rows that a processor stores (dispatch) or pulls and adds (combine), by what one processor does
    network  rows to other domains, once a token and domain, by the rate of the rank's NIC

High throughput: fixed + flow. Low latency: the first rows go while later ones are made, so that both partly
overlap: (fixed^p + flow^p)^(1/p). PARAMETERS is the one table of numbers, each with where it comes from;
the first kind is measured, the second assumed, and only the second decides what is said of networks.
docs/cost-model.md explains. Times are in microseconds, sizes in bytes, rates in GB/s (1e9)."""
from math import comb, ceil

MEASURED, ASSUMED = "measured", "assumed"

# name: (value, unit, kind, where it comes from)
PARAMETERS = {
    "wire_2": (318, "GB/s", MEASURED, "all-to-all push, 2 GPUs, 24 SMs: notes of 2xH200/ep_*.json"),
    "wire": (333, "GB/s", MEASURED, "the same, 4 GPUs: 4xH200/ep_*.json; taken for larger domains, too"),
    "pull": (320, "GB/s", MEASURED, "all-to-all pull: 4xH200/wire.json"),
    "copy": (2007, "GB/s", MEASURED, "copy inside a device: 4xH200/wire.json, local"),
    "sm_store": (47, "GB/s", MEASURED, "one processor's stores, any kind: docs/performance.md, Floors"),
    "sm_cast": (15.2, "GB/s", MEASURED, "FP8 bytes one processor casts and stores: 2xH200/ep_cast.json"),
    "sm_add": (30, "GB/s", MEASURED, "rows one processor pulls and adds: 2xH200/ep_sms8.json"),
    "dispatch_fixed": (14.5, "us", MEASURED, "one token: 4xH200/ep_t1.json"),
    "combine_fixed": (15.4, "us", MEASURED, "one token: 4xH200/ep_t1.json"),
    "route_fixed": (14.8, "us", MEASURED, "one token: 4xH200/ep_t1.json"),
    "route_root": (0.093, "us", MEASURED, "times the root of tokens: a fit to 1 .. 32768 tokens, 4xH200, 8xH200"),
    "ll_overlap": (1.1, "", MEASURED, "the exponent p: a fit to ll_graph.json of 2xH200 and 4xH200"),
    "ll_dispatch_fixed": (8.4, "us", MEASURED, "one token: 2xH200/ll_graph.json, in a row"),
    "ll_combine_fixed": (9.2, "us", MEASURED, "one token, in a row, weights there: 2xH200/ll_graph.json"),
    "ll_sum_fixed": (7.4, "us", MEASURED, "one token, in a row, sums: 2xH200/ll_graph_wd.json"),
    "ll_spread": (1265, "GB/s", MEASURED, "slabs that 132 processors fill, after the wire: ll_graph.json"),
    "ll_spread_bf16": (3000, "GB/s", MEASURED, "the same, BF16 rows as they are: 2xH200/ll_bf16.json"),
    "ll_sums": (0.63, "", MEASURED, "of the wire, sums that ranks push home: ll_graph_wd.json"),
    "ll_home": (0.88, "", MEASURED, "of the wire, rows that come home each by itself: 2xH200/ll_graph.json"),
    "signal": (1.42, "us", MEASURED, "a signal, one way: 2xH200/op_signal.json"),
    "softnic_way": (6.0, "us", MEASURED, "8 bytes by the software NIC, one way, no model: 2xH200/nic.json"),
    "softnic_share": (0.988, "", MEASURED, "of the modelled rate, entries of 64 KiB: 2xH200/nic.json"),
    "softnic_rows": (0.995, "", MEASURED, "the same, rows of 4096 and 8192 tokens: 2026-11-27-4xH200/*ep_far"),
    "softnic_dispatch": (80, "us", MEASURED, "first and last pieces through it, beside their way: the same"),
    "softnic_combine": (110, "us", MEASURED, "likewise, of combine"),
    "softnic_ll": (16.5, "us", MEASURED, "one token through it, beside its way: 2026-11-2[37]-*/*ll_far*"),
    "softnic_ll_rows": (0.96, "", MEASURED, "of the modelled rate, rows of low latency: the same"),
    "chunk": (65536, "bytes", MEASURED, "a put of messages across domains: docs/decisions/016"),
    "nic_rate": (50, "GB/s", ASSUMED, "a 400 Gb/s NIC for each rank"),
    "nic_way": (1.4, "us", ASSUMED, "doorbell to memory at the other end, without switches"),
    "hop": (0.3, "us", ASSUMED, "a switch and its cables"),
    "radix": (64, "ports", ASSUMED, "of a switch, at the NIC's rate; no level is oversubscribed"),
    "leaf_share": (0.97, "", ASSUMED, "of the rate, through one switch: headers, acknowledgements"),
    "spine_share": (0.92, "", ASSUMED, "through more, with adaptive routing: packets still meet"),
    "header": (64, "bytes", ASSUMED, "a message has besides its row: trailer, weights, padding"),
}


def value(name):
    return PARAMETERS[name][0]


class Shape:
    """One rank's batch. `domain` ranks reach each other by loads and stores; groups = (all, chosen) limits
    a token's experts to some groups, None does not."""

    def __init__(self, ranks, tokens, domain=None, hidden=7168, topk=8, experts=256, sms=24, groups=None):
        self.ranks, self.tokens, self.domain = ranks, tokens, domain or ranks
        self.hidden, self.topk, self.experts, self.sms, self.groups = hidden, topk, experts, sms, groups

    def domains(self):
        return self.ranks // self.domain

    def hit(self, experts):
        """The chance that a token goes to a set of so many neighbouring experts, drawn uniformly."""
        if self.groups is None:
            return 1 - _missed(self.experts, experts, self.topk)
        num, chosen = self.groups
        size = self.experts // num
        if experts <= size:
            return chosen / num * (1 - _missed(chosen * size, experts, self.topk))
        inside = experts // size  # whole groups
        return sum(
            comb(inside, i) * comb(num - inside, chosen - i) / comb(num, chosen)
            * (1 - _missed(chosen * size, i * size, self.topk))
            for i in range(max(0, chosen + inside - num), min(inside, chosen) + 1))

    def rank_rows(self):
        """Ranks a token goes to, its own among them."""
        return self.ranks * self.hit(self.experts // self.ranks)

    def domain_rows(self):
        """Other domains a token goes to."""
        if self.domains() == 1:
            return 0
        return (self.domains() - 1) * self.hit(self.experts // self.domains())


def _missed(experts, some, topk):
    """The chance that none of top-k of all experts is among some."""
    return comb(experts - some, topk) / comb(experts, topk) if experts - some >= topk else 0.0


def row_bytes(hidden, dtype):
    return 2 * hidden if dtype == "bf16" else hidden + 4 * ceil(hidden / 128)


def wire_of(ranks):
    return value("wire_2" if ranks == 2 else "wire")


def over(num_bytes, gb_s):
    return num_bytes / gb_s / 1e3


# ---- Bytes of one rank -------------------------------------------------------------------------------------


class Traffic:
    """rows: received, own ones too; wire: bytes from other ranks of the domain; network: bytes from other
    domains; staged: what is copied of tensors that are in no window, all but own rows in rank layout and one
    domain."""

    def __init__(self, shape, bytes_each, layout="rank"):
        rows = shape.rank_rows() if layout == "rank" else shape.topk
        self.rows = shape.tokens * rows * bytes_each
        self.wire = self.rows * (shape.domain - 1) / shape.domain
        self.network = shape.tokens * shape.domain_rows() * (bytes_each + value("header"))
        leaves_out = layout == "rank" and shape.domain == shape.ranks
        self.staged = self.wire if leaves_out else self.rows


# ---- What connects domains ---------------------------------------------------------------------------------


class Network:
    """rate and share of it that entries get, and one way's time; the share that rows get, and what first and
    last ones take: of high throughput (of dispatch, of combine), and of low latency."""

    def __init__(self, rate, share, way, rows_share=None, ramps=(0, 0), ll_share=None, ll_ramp=0):
        self.rate, self.share, self.way = rate, share, way
        self.rows_share, self.ramps = rows_share or share, ramps
        self.ll_share, self.ll_ramp = ll_share or share, ll_ramp

    def flow(self, num_bytes):
        return over(num_bytes, self.rate * self.share)

    def rows(self, num_bytes):
        return over(num_bytes, self.rate * self.rows_share)

    def ll_rows(self, num_bytes):
        return over(num_bytes, self.rate * self.ll_share)


def modelled(rate=None, way=2.0):
    """The software NIC on GPUs, with a modelled wire."""
    ramps = value("softnic_dispatch"), value("softnic_combine")
    return Network(
        rate or value("nic_rate"), value("softnic_share"), way + value("softnic_way"), value("softnic_rows"), ramps,
        value("softnic_ll_rows"), value("softnic_ll"))


def _switched(ports):
    """One level of switches, two, or three, for so many ports."""
    radix = value("radix")
    hops = 1 if ports <= radix else 3 if ports <= radix * radix // 2 else 5
    share = value("leaf_share") if hops == 1 else value("spine_share")
    return Network(value("nic_rate"), share, value("nic_way") + hops * value("hop"))


def railed(ranks, domain):
    """A network of its own for each place in a domain, which is all that Tern's rails use."""
    return _switched(ranks // domain)


def fat_tree(ranks, domain):
    """One network for all ranks, whose neighbours on a leaf are those of their host."""
    return _switched(ranks)


# ---- Operations --------------------------------------------------------------------------------------------


def route(shape):
    """Inside a domain."""
    return value("route_fixed") + value("route_root") * shape.tokens**0.5


def _far_fixed(network, op):
    """Until the first chunk has come: a way, its bytes, its signal; and what is known of the ends besides."""
    if not network:
        return 0
    return network.way + network.flow(value("chunk")) + value("signal") + network.ramps[op]


def dispatch(shape, dtype="bf16", layout="rank", tensor=False, network=None, traffic=None):
    t = traffic or Traffic(shape, row_bytes(shape.hidden, dtype), layout)
    sm = value("sm_cast" if dtype == "cast" else "sm_store")
    # What is put into the network's rings is stored there first.
    flows = [over(t.wire, wire_of(shape.domain)), over(t.rows + t.network, shape.sms * sm)]
    if network:
        flows.append(network.rows(t.network))
    staging = over(t.staged, value("copy")) if tensor else 0
    return value("dispatch_fixed") + _far_fixed(network, 0) + max(flows) + staging


def combine(shape, layout="rank", tensor=False, network=None, traffic=None):
    t = traffic or Traffic(shape, row_bytes(shape.hidden, "bf16"), layout)
    flows = [over(t.wire, value("pull")), over(t.rows + t.network, shape.sms * value("sm_add"))]
    if network:
        flows.append(network.rows(t.network))
    staging = over(t.staged, value("copy")) if tensor else 0
    return value("combine_fixed") + _far_fixed(network, 1) + max(flows) + staging


def _partly(fixed, flow):
    p = value("ll_overlap")
    return (fixed**p + flow**p) ** (1 / p)


def ll_dispatch(shape, dtype="fp8", network=None, is_railed=False):
    each = row_bytes(shape.hidden, dtype)
    t = Traffic(shape, each)
    spread = value("ll_spread_bf16" if dtype == "bf16" else "ll_spread")
    flows = [over(t.wire, wire_of(shape.domain))]
    filled = over(shape.tokens * shape.topk * each, spread)
    return _ll(shape, "ll_dispatch_fixed", flows, _far_rows(shape, is_railed), each, network, filled)


def ll_combine(shape, weights="combine", network=None, is_railed=False):
    """weights at combine: each (token, choice) comes home, railed or not; at dispatch: each (token, rank), or
    railed each (token, other domain)."""
    each = row_bytes(shape.hidden, "bf16")
    choices = shape.tokens * shape.topk * each
    if weights == "combine":
        near = choices * (shape.domain - 1) / shape.ranks
        flows = [over(near, value("ll_home") * wire_of(shape.domain))]
        rows = shape.topk * (shape.ranks - shape.domain) / shape.ranks
        return _ll(shape, "ll_combine_fixed", flows, rows, each, network)
    near = Traffic(shape, each).wire
    flows = [over(near, value("ll_sums") * wire_of(shape.domain))]
    return _ll(shape, "ll_sum_fixed", flows, _far_rows(shape, is_railed), each, network)


def _far_rows(shape, is_railed):
    """Rows of a token that cross the network: one for each other domain (ll_rail), or for each rank there."""
    if is_railed:
        return shape.domain_rows()
    return (shape.ranks - shape.domain) * shape.hit(shape.experts // shape.ranks)


def _ll(shape, fixed, flows, far_rows, each, network, filled=0):
    """filled: what comes after all that is on the way."""
    start = value(fixed)
    if network:
        flows = flows + [network.ll_rows(shape.tokens * far_rows * (each + value("header")))]
        start += network.way + value("signal") + network.ll_ramp
    return _partly(start, max(flows) + filled)
