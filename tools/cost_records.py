# SPDX-License-Identifier: Apache-2.0
"""Predictions of the cost model beside measurements: the JSON of `tern-bench ep` and `tern-bench ll`.

Reads every file below a folder. A row becomes a record if the model has something to say of it; the rest is
counted by reason. Rows across domains (column `domains` above 1, which `tern-bench ep --domain-size`
writes) need nothing more than lying there: the wire's own floor and the bytes that crossed are columns of
theirs."""
import json
import os
import re
import sys
sys.dont_write_bytecode = True

import cost_model as model

LIMIT = 0.15  # what a claim may be off by

# Rows that are told but not claimed: the file below the folder, without its end, and the operation. Each says why
# in words that stand alone: `claims` counts by them, and docs/cost-model.md has its table. Those of kernels of
# before, and of H100s, are none either (SINCE, _why_not).
NOT_CLAIMED = {
    ("2026-11-28-4xH200-2/ll_far_1x1_sums", "dispatch"): "sixteen queues, whose messages are not counted",
}
for _name in ("2xH200/ep_h2048_auto", "2xH200/ep_h2048_pull", "4xH200-2/n4_ep_h2048"):
    for _op in ("dispatch", "combine"):
        NOT_CLAIMED["2026-11-28-" + _name, _op] = "short rows, which processors limit"
for _op in ("dispatch", "combine"):
    NOT_CLAIMED["2026-11-28-2xH200-2/ep_plain_tensor", _op] = "loads and stores where bulk copies could be had"
    NOT_CLAIMED["2026-11-28-4xH200-2/ll_far_4x1_sums", _op] = "48 queue pairs share 32 of the NIC's processors"
for _name in ("ep_far_q8", "ep_far_q16"):
    for _op in ("dispatch", "combine"):
        NOT_CLAIMED["2026-11-28-4xH200/" + _name, _op] = "streams wait for each other in few queues"
for _gpus in ("r4_", "r8_"):
    for _op in ("dispatch", "combine"):
        NOT_CLAIMED["2026-11-27-8xH200/" + _gpus + "ll_far", _op] = "messages waited for clocks of GPUs"

# From which day on records are of the kernels, and the software NIC, as they are, and folders of that day which
# are not: (kind of record, across domains).
SINCE = {("ep", False): ("2026-11-26", ("2026-11-26-2xH200",)),
         ("ll", False): ("2026-11-26", ("2026-11-26-2xH200", "2026-11-26-8xH200")),
         ("ep", True): ("2026-11-28", ()), ("ll", True): ("2026-11-28", ())}


def _why_not(name, row, kind):
    """The reason why a row is not claimed, or None. One that lies right in the folder that is read has none but
    its own: whoever reads a folder of results by itself sees all of it as claims."""
    if (name, row["op"]) in NOT_CLAIMED:
        return NOT_CLAIMED[name, row["op"]]
    folder, _, file = name.rpartition("/")
    if "H100" in folder:
        return "H100s; parameters are of H200s"
    is_far = int(row.get("domains") or 1) > 1 or (row.get("domain-size") or row["ranks"]) < row["ranks"]
    day, others = SINCE[kind, is_far]
    if folder and (folder[:len(day)] < day or folder in others or "before_" in file):
        return "kernels, or a software NIC, of before"
    return "compared with nothing" if row.get("#wrong") is None else None


class Record:
    def __init__(self, name, row, measured, predicted, kind):
        self.name, self.row, self.measured, self.predicted = name, row, measured, predicted
        self.why_not = _why_not(name, row, kind)
        self.is_claimed = self.why_not is None

    def error(self):
        return self.predicted / self.measured - 1

    def is_off(self):
        return abs(self.error()) > LIMIT

    def what(self):
        domains = int(self.row.get("domains") or 1)
        far = ", %d domains" % domains if domains > 1 else ""
        return "%s, %d tokens, %d SMs%s" % (self.row["op"], self.row["tokens"], self.row["sms"], far)


def _moved(row, shape, domains):
    """The bytes of a row's own draw, which are rates times its time, whatever the ids were."""
    traffic = model.Traffic(shape, 1)
    seconds = row["p50"] * 1e3
    traffic.rows = row["logical"] * seconds
    traffic.wire = row["remote"] * seconds
    traffic.network = 0
    leaves_out = domains == 1 and row["layout"] == "rank"
    traffic.staged = traffic.wire if leaves_out else traffic.rows
    if domains > 1:
        traffic.network = row["network-bytes"]
        traffic.wire = traffic.rows * (shape.domain - 1) / shape.domain
    return traffic


def _busiest(row, shape, traffic):
    """The wire of the rank that receives most; at most what all others send."""
    each = model.row_bytes(shape.hidden, "bf16" if row["op"] == "combine" else row["dtype"])
    if row["skew"] <= 1.05:
        return traffic.wire  # the fixed parameters are of draws as even as that
    return min(traffic.wire * row["skew"], shape.tokens * (shape.domain - 1) * each)


def _floor_network(row, traffic):
    """A network whose flow is the row's own floor, over the share of it that was measured."""
    network = model.modelled(traffic.network / (row["floor"] * 1e3))
    network.way = model.value("softnic_way")  # the floor has the wire's
    return network


def _pushes(row, notes):
    """Whether combine's rows were pushed; left to the library, as terni_tuning_pushes says (src/ep/tuning.c)."""
    options = notes.get("options", "")
    many = row["tokens"] >= 4096 and row["hidden"] >= 6144 if row["ranks"] > 2 else row["tokens"] >= 8192
    suits = many and row["ranks"] > 1 and row["sms"] >= 24
    one = int(row.get("domains") or 1) == 1 and row["layout"] == "rank"
    return "combine push" in options or ("combine auto" in options and one and suits)


def ep_record(row, notes):
    """Predicted p50, or the reason why not."""
    domains = int(row.get("domains") or 1)
    shape = model.Shape(row["ranks"], row["tokens"], row["ranks"] // domains, row["hidden"], row["topk"],
                        row["experts"], row["sms"])
    tensor = "out tensor" in notes.get("options", "")
    if domains > 1 and not row.get("floor"):
        return "across domains: route, and what no modelled wire carried"
    if row["op"] == "route":
        return model.route(shape, row["layout"])
    if row["op"] == "chain":
        return "a chain is the sum of its parts"
    if row["op"] == "combine" and "combine engine" in notes.get("options", ""):
        return "combine by copy engine"
    if row["op"] == "dispatch" and "drain 1" in notes.get("options", ""):
        return "dispatch that drains"
    traffic = _moved(row, shape, domains)
    network = _floor_network(row, traffic) if domains > 1 else None
    if domains == 1 and row["layout"] == "rank":
        traffic.wire = _busiest(row, shape, traffic)
    if row["op"] == "dispatch":
        return model.dispatch(shape, row["dtype"], row["layout"], tensor, network, traffic)
    return model.combine(shape, row["layout"], tensor, network, traffic, _pushes(row, notes))


def ll_record(row, notes):
    """Predicted time in a row, from graphs; else the reason why not."""
    domain = row.get("domain-size") or row["ranks"]
    is_far = domain < row["ranks"]
    wire = re.search(r"(\d+) Gb/s.*?(\d+) us one way", notes.get("model", ""))
    is_plain = not row["hook"] and row["layout"] == "expert" and row["compression"] == "none"
    if not is_plain or not (row["graph"] or is_far):
        return "low latency other than replayed from graphs, by expert"
    if is_far and not (wire and int(wire[1])):
        return "low latency across domains that no modelled wire carried"
    shape = model.Shape(row["ranks"], row["tokens"], domain, row["hidden"], row["topk"], row["experts"],
                        row["sms"])
    dtype = "bf16" if row["cast"] == "none" else "fp8"
    network = model.modelled(int(wire[1]) / 8, int(wire[2])) if is_far else None
    railed = bool(row.get("rail"))
    parts = {"dispatch": lambda: model.ll_dispatch(shape, dtype, network, railed),
             "combine": lambda: model.ll_combine(shape, row["weights"], network, railed)}
    return parts[row["op"]]() if row["op"] in parts else "a pair is the sum of its parts"


def read_file(path, name):
    """Records, and reasons of rows that are none."""
    with open(path, encoding="utf-8") as file:
        report = json.load(file)
    records, reasons = [], []
    predict = {"ep": ep_record, "ll": ll_record}.get(report.get("kind"))
    if predict is None or report["notes"].get("machine", "").startswith("cpu"):
        return [], ["no GPU's dispatch and combine"]
    for row in report["rows"]:
        if row.get("#wrong"):
            sys.exit("tern-cost.py: %s: %s of %d tokens: %d elements are wrong"
                     % (name, row["op"], row["tokens"], row["#wrong"]))
        predicted = predict(row, report["notes"])
        if isinstance(predicted, str):
            reasons.append(predicted)
        else:
            measured = row["in-a-row"] if report["kind"] == "ll" else row["p50"]
            records.append(Record(name, row, measured, predicted, report["kind"]))
    return records, reasons


def read_folder(folder):
    """All records below it, in order, and how many rows were left out for which reason."""
    records, left_out = [], {}
    for base, folders, files in os.walk(folder):
        folders.sort()
        for file in sorted(files):
            if file.endswith(".json"):
                name = os.path.relpath(os.path.join(base, file), folder)[:-5]
                more, reasons = read_file(os.path.join(base, file), name)
                records += more
                for reason in reasons:
                    left_out[reason] = left_out.get(reason, 0) + 1
    return records, left_out


def unused(records):
    """Keys of NOT_CLAIMED that no record has, if these are all there are."""
    return sorted(set(NOT_CLAIMED) - {(r.name, r.row["op"]) for r in records})
