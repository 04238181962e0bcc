# SPDX-License-Identifier: Apache-2.0
"""The cost model: what Tern's operations take, from a few measured numbers.

An operation takes a fixed time (launch, frame, signals, the latency of one row) and a flow: the bytes that
every rank moves, over whichever of three limits is the tightest, as all three work at once:

    wire     rows to other ranks of the domain, by what many of them take more than one
    issue    rows that a processor stores (dispatch) or pulls and adds (combine), by what one processor does
    network  rows to other domains, once a token and domain, by the rate of the rank's NIC

High throughput: fixed + flow. Low latency: (fixed^p + flow^p)^(1/p). Of a combine p is above 1, as the first
rows go while later ones are made; of a dispatch below 1, more than their sum, as what it counts, and finds
places for, grows with its tokens, too. Across domains few rows take what one takes, and many their flow and
what its ends take, or what the own domain takes if that is more. PARAMETERS is the one
table of numbers, each with where it comes from; the first kind is measured, the second assumed, and only the
second decides what is said of networks. docs/cost-model.md explains. Times are in microseconds, sizes in bytes,
rates in GB/s (1e9)."""
from math import comb, ceil

MEASURED, ASSUMED = "measured", "assumed"
_LL_FILES = "2026-11-26-8xH200-2, 2026-11-28-4xH200-2"

# name: (value, unit, kind, where it comes from: files are of 2026-11-28-4xH200-2 where no folder is named)
PARAMETERS = {
    "wire_2": (365, "GB/s", MEASURED, "rows that dispatch pushes, 2 GPUs, 24 SMs: n2_ep, 4096 and one token"),
    "wire": (353, "GB/s", MEASURED, "the same, 4 GPUs: r4_ep_sms24, n4_ep; taken for larger domains, too"),
    "pull": (325, "GB/s", MEASURED, "rows that combine pulls: r4_ep_pull, likewise"),
    "copy": (2007, "GB/s", MEASURED, "copy inside a device: 2026-11-21-4xH200/wire, local"),
    "copy_fixed": (4, "us", MEASURED, "a copy's launch and its first look: 2026-11-28-2xH200-2/ep_tensor"),
    "sm_store": (49.5, "GB/s", MEASURED, "one processor's stores, any kind: r4_ep_sms8; docs/performance.md, Floors"),
    "sm_cast": (32, "GB/s", MEASURED, "FP8 bytes one processor casts and stores, H100: docs/performance.md"),
    "sm_add": (49, "GB/s", MEASURED, "rows one processor pulls and adds: r4_ep_sms8"),
    "dispatch_fixed": (18, "us", MEASURED, "one token: n2_ep, n4_ep"),
    "combine_fixed": (17, "us", MEASURED, "the same"),
    "push_fixed": (13, "us", MEASURED, "what a combine takes more that pushes: r4_ep_push, 128 tokens"),
    "route_fixed": (17.5, "us", MEASURED, "one token: the same, and n3_ep"),
    "route_root": (0.08, "us", MEASURED, "times the root of tokens: a fit to 1 .. 32768 tokens"),
    "route_expert": (3, "us", MEASURED, "what expert layout adds: n4_ep_expert"),
    "ll_dispatch_p": (0.72, "", MEASURED, "the exponent p of dispatch: a fit to %s" % _LL_FILES),
    "ll_combine_p": (1.1, "", MEASURED, "of combine: the same"),
    "ll_dispatch_fixed": (6.3, "us", MEASURED, "one token, in a row: the fit of ll_dispatch_p"),
    "ll_combine_fixed": (7.0, "us", MEASURED, "one token, in a row, weights there: that of ll_combine_p"),
    "ll_sum_fixed": (5.55, "us", MEASURED, "one token, in a row, sums: the same"),
    "ll_ahead": (3.4, "us", MEASURED, "weights that go ahead, a kernel more: 2026-11-28-4xH200-3/r4_ll_ahead"),
    "ll_spread": (3360, "GB/s", MEASURED, "slabs that 132 processors fill, after the wire: that of ll_dispatch_p"),
    "ll_add": (12500, "GB/s", MEASURED, "what 132 processors add after the wire: that of ll_combine_p"),
    "ll_sums": (0.825, "", MEASURED, "of the wire, sums that ranks push home: that of ll_combine_p"),
    "ll_home": (0.88, "", MEASURED, "of the wire, rows that come home each by itself: the same"),
    "signal": (1.42, "us", MEASURED, "a signal, one way: 2026-11-21-2xH200/op_signal"),
    "softnic_way": (6.0, "us", MEASURED, "8 bytes by the software NIC, one way, no model: 2026-11-21-2xH200/nic"),
    "softnic_share": (0.988, "", MEASURED, "of the modelled rate, entries of 64 KiB: 2026-11-21-2xH200/nic"),
    "softnic_rows": (0.995, "", MEASURED, "the same, rows of 4096 and 8192 tokens: *ep_far*"),
    "softnic_dispatch": (42, "us", MEASURED, "first and last pieces through it, beside their way: the same"),
    "softnic_combine": (70, "us", MEASURED, "likewise, of combine"),
    "softnic_ll": (22.9, "us", MEASURED, "one token through it, beside its way: 2026-11-28-4xH200-2/ll_far_2x2_*"),
    "softnic_ll_out": (12, "us", MEASURED, "first and last rows of a dispatch, beside the flow: the same"),
    "softnic_ll_back": (18.1, "us", MEASURED, "likewise, of a combine"),
    "softnic_ll_rows": (0.75, "", MEASURED, "of the modelled rate, FP8 rows of a dispatch, by 32 queues: the same"),
    "softnic_ll_home": (0.91, "", MEASURED, "rows of a combine: the same"),
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
    last ones take: of high throughput (of dispatch, of combine), and of low latency. ll_ramp: what one row takes
    besides; ll_ends: what an operation of many rows takes beside their flow, None: as much as one of a single
    row."""

    def __init__(self, rate, share, way, rows_share=None, ramps=(0, 0), ll_shares=None, ll_ramp=0, ll_ends=None):
        self.rate, self.share, self.way = rate, share, way
        self.rows_share, self.ramps = rows_share or share, ramps
        self.ll_shares, self.ll_ramp, self.ll_ends = ll_shares or (share, share), ll_ramp, ll_ends

    def flow(self, num_bytes):
        return over(num_bytes, self.rate * self.share)

    def rows(self, num_bytes):
        return over(num_bytes, self.rate * self.rows_share)

    def ll_rows(self, num_bytes, op):
        return over(num_bytes, self.rate * self.ll_shares[op])


def modelled(rate=None, way=2.0):
    """The software NIC on GPUs, with a modelled wire."""
    ramps = value("softnic_dispatch"), value("softnic_combine")
    shares = value("softnic_ll_rows"), value("softnic_ll_home")
    ends = value("softnic_ll_out"), value("softnic_ll_back")
    return Network(
        rate or value("nic_rate"), value("softnic_share"), way + value("softnic_way"), value("softnic_rows"), ramps,
        shares, value("softnic_ll"), ends)


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


def route(shape, layout="rank"):
    """Inside a domain."""
    more = value("route_expert") if layout == "expert" else 0
    return value("route_fixed") + value("route_root") * shape.tokens**0.5 + more


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
    staging = value("copy_fixed") + over(t.staged, value("copy")) if tensor else 0
    return value("dispatch_fixed") + _far_fixed(network, 0) + max(flows) + staging


def combine(shape, layout="rank", tensor=False, network=None, traffic=None, pushes=False):
    """pushes: ranks push rows from wherever they are, in one domain; `tensor` and `network` do not count then."""
    t = traffic or Traffic(shape, row_bytes(shape.hidden, "bf16"), layout)
    if pushes:
        flow = max(over(t.wire, wire_of(shape.domain)), over(t.rows, shape.sms * value("sm_add")))
        return value("combine_fixed") + value("push_fixed") + flow
    flows = [over(t.wire, value("pull")), over(t.rows + t.network, shape.sms * value("sm_add"))]
    if network:
        flows.append(network.rows(t.network))
    staging = value("copy_fixed") + over(t.staged, value("copy")) if tensor else 0
    return value("combine_fixed") + _far_fixed(network, 1) + max(flows) + staging


def _partly(fixed, flow, p):
    return (fixed**p + flow**p) ** (1 / p)


def ll_dispatch(shape, dtype="fp8", network=None, is_railed=False):
    each = row_bytes(shape.hidden, dtype)
    t = Traffic(shape, each)
    near = over(t.wire, wire_of(shape.domain))
    # BF16 rows that go as they are were never seen to take time behind the wire (8xH200-2/r8_after_ll_bf16).
    filled = over(shape.tokens * shape.topk * each, value("ll_spread")) if dtype != "bf16" else 0
    return _ll(shape, "ll_dispatch_fixed", near, _far_rows(shape, is_railed), each, network, 0, filled)


def ll_combine(shape, weights="combine", network=None, is_railed=False):
    """weights at combine: each (token, choice) comes home, railed or not; at dispatch, or ahead, which adds a
    kernel: each (token, rank), or railed each (token, other domain)."""
    each = row_bytes(shape.hidden, "bf16")
    choices = shape.tokens * shape.topk * each
    adding = over(choices, value("ll_add"))
    if weights == "combine":
        near = over(choices * (shape.domain - 1) / shape.ranks, value("ll_home") * wire_of(shape.domain)) + adding
        rows = shape.topk * (shape.ranks - shape.domain) / shape.ranks
        return _ll(shape, "ll_combine_fixed", near, rows, each, network, 1)
    near = over(Traffic(shape, each).wire, value("ll_sums") * wire_of(shape.domain)) + adding
    ahead = value("ll_ahead") if weights == "ahead" else 0
    return ahead + _ll(shape, "ll_sum_fixed", near, _far_rows(shape, is_railed), each, network, 1)


def _far_rows(shape, is_railed):
    """Rows of a token that cross the network: one for each other domain (ll_rail), or for each rank there."""
    if is_railed:
        return shape.domain_rows()
    return (shape.ranks - shape.domain) * shape.hit(shape.experts // shape.ranks)


def _ll(shape, fixed, near, far_rows, each, network, op, filled=0):
    """near: what the wire of the domain takes; filled: what comes after that."""
    p = value("ll_combine_p" if op else "ll_dispatch_p")
    inside = _partly(value(fixed), near + filled, p)
    if not network:
        return inside
    start = value(fixed) + network.way + value("signal") + network.ll_ramp
    ends = network.ll_ends[op] if network.ll_ends else start
    return max(inside, start, ends + network.ll_rows(shape.tokens * far_rows * (each + value("header")), op))
