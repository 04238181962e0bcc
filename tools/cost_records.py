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
# in words that stand alone: `claims` counts by them, and docs/cost-model.md has its table.
NOT_CLAIMED = {
    ("2026-11-21-4xH200/ep_sms8", "combine"): "older kernels, faster with 8 SMs than 2xH200's",
    ("2026-11-21-4xH200/ep_fp8_sms8", "combine"): "older kernels, faster with 8 SMs than 2xH200's",
    ("2026-11-22-4xH200/ep_sms8", "combine"): "the model has 2xH200's figure for 8 SMs",
    ("2026-11-21-2xH200/ep_sms8", "route"): "the model's route does not know how many processors count",
    ("2026-11-22-4xH200/ep_sms8", "route"): "the model's route does not know how many processors count",
}
# First measurements across domains: the kernels wait for memory, and the software NIC for one entry after the
# other (docs/performance.md); the model is of kernels that keep the network busy.
_IDLE = "kernels across domains leave the network idle yet"
for _name in ("ep_far_bf16", "ep_far_fp8", "ep_far_2x2", "ep_far_bf16_nic16_q8", "ep_far_bf16_nic16_q16",
              "ep_far_bf16_nic16_q16_s40", "ll_far_modelled", "ll_far_2x2"):
    for _op in ("dispatch", "combine"):
        NOT_CLAIMED["2026-11-22-1xH200/" + _name, _op] = _IDLE
for _name in ("ep_far_before", "ep_far_bf16", "ep_far_bf16_q16", "ep_far_bf16_q16_s24", "ep_far_bf16_q24",
              "ep_far_fp8_q16", "ep_far_fp8", "ll_far"):
    for _op in ("dispatch", "combine"):
        NOT_CLAIMED["2026-11-22-4xH200/" + _name, _op] = _IDLE  # though they come nearer
# With 24 processors and enough of the NIC's they do not, and are claimed.
for _name in ("ep_far_bf16", "ep_far_fp8", "ep_far_q28", "ep_far_q28_fp8", "ll_far", "ll_far_sums"):
    for _op in ("dispatch", "combine"):
        NOT_CLAIMED["2026-11-22-2xH200/" + _name, _op] = _IDLE  # nearer again
# Since then what high throughput loses to the software NIC is known, and claimed.
for _name, _why in (("ep_far_q8", "eight of the NIC's processors are slower than its wire"),
                    ("ll_far", "low latency waits for the NIC's processors"),
                    ("ll_far_sums", "low latency waits for the NIC's processors")):
    for _op in ("dispatch", "combine"):
        NOT_CLAIMED["2026-11-23-2xH200/" + _name, _op] = _why
# And with a NIC that does more at once, low latency, too.
for _name, _why in (("ll_far_q8", "chunks wait for each other in eight queues"),
                    ("ll_2x2", "two ranks share a GPU and its launches"),
                    ("ll_2x2_rail", "two ranks share a GPU and its launches")):
    for _op in ("dispatch", "combine"):
        NOT_CLAIMED["2026-11-23-2xH200-2/" + _name, _op] = _why
for _name in ("ep_far_q8", "ep_far_q8_fp8"):
    NOT_CLAIMED["2026-11-23-2xH200-2/" + _name, "combine"] = "eight of the NIC's processors are slower than its wire"
# Taken on one GPU, to compare two states of the kernels with each other; the model is of ranks that have GPUs of
# their own, and what an SM adds (sm_add) is that of the state before.
for _name in ("ep_far", "ep_far_again", "ep_far_fp8", "ep_2_sms8", "ep_2_sms16",
              "before_ep_far", "before_ep_far_again", "before_ep_2_sms8", "before_ep_2_sms16"):
    for _op in ("dispatch", "combine") if "far" in _name else ("route", "dispatch", "combine"):
        NOT_CLAIMED["2026-11-23-1xH200/" + _name, _op] = "ranks share a GPU"
for _name in ("main_ll", "fair_ll"):
    for _op in ("dispatch", "combine"):
        NOT_CLAIMED["2026-11-24-1xH200/" + _name, _op] = "ranks share a GPU"
# Taken on H100s, to compare two states of low latency; the model has the H200's figures and, of few tokens, those of
# the state before.
_H100 = "two H100, parameters are of H200s"
for _name in ("bf16_before", "bf16_after", "four_before", "four_after",
              "combine_before", "combine_after", "combine_before_again", "combine_after_again",
              "sums_before", "sums_after", "sums_before_again", "sums_after_again"):
    for _op in ("dispatch", "combine"):
        NOT_CLAIMED["2026-11-25-2xH100/" + _name, _op] = _H100

# Dispatch that casts: sm_cast is of the kernels before, which took longer; across domains few warps cast, which the
# model does not know.
for _name in ("before_ep_far_cast", "near_ep_far_cast", "tried_ep_far_cast_14", "tried_ep_far_cast_early",
              "near_ep_cast", "near_ep_cast_sms8", "ep_cast", "ep_cast_sms8"):
    NOT_CLAIMED["2026-11-25-2xH100-2/" + _name, "dispatch"] = "the cast, which has changed since"
for _name in ("before_ep_cast_sms8", "near_ep_cast_sms8", "ep_cast_sms8"):
    NOT_CLAIMED["2026-11-25-2xH100-2/" + _name, "route"] = "the model's route does not know how many processors count"
    NOT_CLAIMED["2026-11-25-2xH100-2/" + _name, "combine"] = "faster since sm_add, which is of the kernels before"
# Two H100, before and after dispatch's warps took tokens (-3), and before and after operations ended faster (-4).
for _files in ("2026-11-25-2xH100-3/before_ep_", "2026-11-25-2xH100-3/ep_",
               "2026-11-25-2xH100-4/before_ep_", "2026-11-25-2xH100-4/ep_"):
    _casts = ("cast_sms8", "cast_sms24") if "2xH100-3" in _files else ("cast_sms24",)
    _names = [_files + _name for _name in ("sms8", "fp8_sms8") + _casts[:-1]]
    for _name in _names:
        NOT_CLAIMED[_name, "route"] = "the model's route does not know how many processors count"
    for _name in _names + [_files + "sms16"]:
        NOT_CLAIMED[_name, "combine"] = "faster since sm_add, which is of the kernels before"
    for _name in _casts:
        NOT_CLAIMED[_files + _name, "dispatch"] = "the cast, which has changed since"
    NOT_CLAIMED[_files + "expert", "route"] = _H100
    for _op in ("route", "dispatch", "combine"):
        NOT_CLAIMED[_files + "tokens", _op] = "two H100, few tokens"
# Two H100, before and after combine took 2 KiB of two rows a step.
for _files in ("2026-11-26-2xH100/before_ep_", "2026-11-26-2xH100/after_ep_"):
    for _name in ("sms8", "sms12", "sms16"):
        NOT_CLAIMED[_files + _name, "combine"] = "faster since sm_add, which is of the kernels before"
    NOT_CLAIMED[_files + "sms8", "route"] = "the model's route does not know how many processors count"
    NOT_CLAIMED[_files + "cast", "dispatch"] = "the cast, which has changed since"
    NOT_CLAIMED[_files + "expert", "route"] = _H100
    for _op in ("route", "dispatch"):
        NOT_CLAIMED[_files + "sms24", _op] = "two H100, few tokens"
    for _op in ("route", "dispatch", "combine"):
        NOT_CLAIMED[_files + "r4", _op] = "ranks share a GPU"
# Two H200, before and after combines went in lines. The model has neither words nor lines, nor dispatch's orders.
for _side in ("before", "after"):
    for _name in ("at_dispatch_1", "at_dispatch_2", "at_combine_1", "at_combine_2"):
        for _op in ("dispatch", "combine"):
            NOT_CLAIMED["2026-11-26-2xH200/%s_ll_%s" % (_side, _name), _op] = "words and lines, newer than the model"
    for _name in ("four_at_dispatch", "four_at_combine"):
        for _op in ("dispatch", "combine"):
            NOT_CLAIMED["2026-11-26-2xH200/%s_ll_%s" % (_side, _name), _op] = "ranks share a GPU"
# Eight H200, and four of them.
for _name in ("before_ll_at_dispatch", "ll_at_combine", "ll_at_dispatch"):
    for _gpus in ("r4_", "r8_"):
        for _op in ("dispatch", "combine"):
            NOT_CLAIMED["2026-11-26-8xH200/" + _gpus + _name, _op] = "words and lines, newer than the model"
for _name in ("r4_after_ll_few_combine", "r4_after_ll_few_dispatch", "r8_after_ll_few_combine",
              "r8_after_ll_few_dispatch", "r8_before_ll_few_dispatch"):
    NOT_CLAIMED["2026-11-26-8xH200/" + _name, "combine"] = "words and lines, newer than the model"
# Eight H200, four and two of them, before and after rows went over blanks.
for _name in ("r8_%s_ll_at_dispatch", "r8_%s_ll_at_combine", "r8_%s_ll_bf16", "r4_%s_ll_at_dispatch",
              "r4_%s_ll_at_combine", "r2_%s_ll_at_dispatch", "r2_%s_ll_at_combine"):
    for _side in ("before", "after"):
        for _op in ("dispatch", "combine"):
            NOT_CLAIMED["2026-11-26-8xH200-2/" + _name % _side, _op] = "lines and blanks, newer than the model"
for _name in ("r8_after_ll_one_at_dispatch", "r8_after_ll_one_at_combine", "r4_after_ll_one_at_dispatch",
              "r4_after_ll_one_at_combine"):
    for _op in ("dispatch", "combine"):
        NOT_CLAIMED["2026-11-26-8xH200-2/" + _name, _op] = "lines and blanks, newer than the model"
NOT_CLAIMED["2026-11-26-8xH200/r8_ep_sms24", "combine"] = "128 tokens on eight GPUs"
NOT_CLAIMED["2026-11-26-8xH200/r8_ep_sms8", "combine"] = "faster since sm_add, which is of the kernels before"
NOT_CLAIMED["2026-11-26-8xH200/r8_ep_sms8", "route"] = "the model's route does not know how many processors count"
for _name in ("h512", "h1000", "h2048", "h5120"):
    for _op in ("route", "dispatch", "combine"):
        NOT_CLAIMED["2026-11-26-2xH100/after_ep_" + _name, _op] = "two H100, short rows"
NOT_CLAIMED["2026-11-25-2xH100-4/ep_32768", "dispatch"] = "32768 tokens at 375 GB/s; the model's wire is of rows in shares"
NOT_CLAIMED["2026-11-25-2xH100-3/before_ep_tensor", "dispatch"] = "processors that are not alike, with a share each"

# Two H100, before and after copies by bulk copies. The model's wire and its few tokens are of H200s, and its copies of
# expert layout of those by loads and stores.
for _name in ("before_window", "window", "last_window", "before_tensor", "tensor", "last_tensor", "push", "push_window",
              "last_push"):
    for _op in ("route", "dispatch") if "push" in _name else ("route", "dispatch", "combine"):
        NOT_CLAIMED["2026-11-26-2xH100-2/" + _name, _op] = "two H100, few tokens"
NOT_CLAIMED["2026-11-26-2xH100-2/tensor_16", "combine"] = "faster since sm_add, which is of the kernels before"
for _name in ("before_expert", "expert"):
    for _op in ("route", "dispatch", "combine"):
        NOT_CLAIMED["2026-11-26-2xH100-2/" + _name, _op] = _H100

# Eight H200, four and two of them, with drainers that take slices.
for _gpus in ("r4_", "r8_"):
    for _op in ("dispatch", "combine"):
        for _name in ("ll_at_dispatch", "ll_at_combine"):
            NOT_CLAIMED["2026-11-27-8xH200/" + _gpus + _name, _op] = "lines and blanks, newer than the model"
        NOT_CLAIMED["2026-11-27-8xH200/" + _gpus + "ll_far", _op] = "messages waited for clocks of GPUs"
    NOT_CLAIMED["2026-11-27-8xH200/%sep_sms8" % _gpus, "combine"] = "faster since sm_add, which is of the kernels before"
    NOT_CLAIMED["2026-11-27-8xH200/" + _gpus + "ep_tensor_drain", "combine"] = "128 tokens, copied first"
NOT_CLAIMED["2026-11-27-8xH200/r8_ep_fp8_sms24", "combine"] = "128 tokens on eight GPUs"
NOT_CLAIMED["2026-11-27-8xH200/r8_ep_sms8", "route"] = "the model's route does not know how many processors count"
NOT_CLAIMED["2026-11-27-8xH200/r8_ep_tensor_drain", "route"] = "128 tokens, copied first"

# Four H200 (2026-11-27): the model's softnic_* are of a NIC whose words have a herald, and of credits with queues of
# their own. Before, operations took longer.
_SLOWER = "the software NIC has become faster since"
for _name, _ops in (("2026-11-23-2xH200/ep_far_bf16", "dispatch combine"),
                    ("2026-11-23-2xH200/ep_far_fp8", "dispatch combine"),
                    ("2026-11-23-2xH200-2/ep_far_q8", "dispatch"), ("2026-11-23-2xH200-2/ep_far_q8_fp8", "dispatch"),
                    ("2026-11-25-2xH100/ll_far", "combine"), ("2026-11-25-2xH100/ll_far_sums", "combine"),
                    ("2026-11-25-2xH100-2/ep_far_cast", "dispatch"),
                    ("2026-11-25-2xH100-2/tried_ep_far_cast_14", "combine"),
                    ("2026-11-27-4xH200/before_tokens_ep_far", "combine")):
    for _op in _ops.split():
        NOT_CLAIMED[_name, _op] = _SLOWER
for _name in ("2026-11-27-4xH200/before_ep_far_q8", "2026-11-27-4xH200/before_ep_far_q16",
              "2026-11-27-4xH200-2/ep_far_q8", "2026-11-27-4xH200-2/ep_far_q16",
              "2026-11-28-4xH200/ep_far_q8", "2026-11-28-4xH200/ep_far_q16"):
    for _op in ("dispatch", "combine"):
        NOT_CLAIMED[_name, _op] = "streams wait for each other in few queues"
for _folder in ("2026-11-27-4xH200/", "2026-11-27-4xH200-2/", "2026-11-28-4xH200/"):
    for _op in ("dispatch", "combine"):
        for _name in ("r4_ll_at_dispatch", "r4_ll_at_combine"):
            NOT_CLAIMED[_folder + _name, _op] = "lines and blanks, newer than the model"
    NOT_CLAIMED[_folder + "r4_ep_sms8", "route"] = "the model's route does not know how many processors count"
    NOT_CLAIMED[_folder + "r4_ep_sms8", "combine"] = "faster since sm_add, which is of the kernels before"
    NOT_CLAIMED[_folder + "r4_ep_tensor_drain", "combine"] = "128 tokens, copied first"

for _name in ("4xH200/r4_ll_far", "2xH200/ll_far_1x1", "2xH200/ll_far_1x1_records"):
    NOT_CLAIMED["2026-11-28-" + _name, "dispatch"] = "low latency dispatch fills the wire sooner since"
NOT_CLAIMED["2026-11-28-2xH200/ep_h2048_pull", "combine"] = "combine of short rows, which adders limit"

# Four H100, and two of them; figures of few tokens, and of fewer processors, are of other kernels.
for _op in ("dispatch", "combine"):
    for _name in ("r4_ll_at_dispatch", "r4_ll_at_combine"):
        NOT_CLAIMED["2026-11-27-4xH100/" + _name, _op] = "lines and blanks, newer than the model"
    NOT_CLAIMED["2026-11-27-4xH100/ll_far_2x2_rail", _op] = "low latency, railed"
    NOT_CLAIMED["2026-11-27-4xH100/ll_far_2x2_tok1", _op] = "low latency waits for the NIC's processors"
NOT_CLAIMED["2026-11-27-4xH100/ll_far_2x2_nic_16_q_16", "dispatch"] = "low latency waits for the NIC's processors"
NOT_CLAIMED["2026-11-27-4xH100/r4_ep_sms24", "combine"] = "two H100, few tokens"
NOT_CLAIMED["2026-11-27-4xH100/r4_ep_sms8", "route"] = "the model's route does not know how many processors count"
NOT_CLAIMED["2026-11-27-4xH100/r4_ep_sms8", "combine"] = "faster since sm_add, which is of the kernels before"
NOT_CLAIMED["2026-11-27-4xH100/r4_ep_tensor_drain", "combine"] = "128 tokens, copied first"

# Taken before own rows were left out of the copies of tensors in no window.
COPIED_ALL = {"2026-11-21-2xH200/ep_tensor", "2026-11-21-4xH200/ep_tensor", "2026-11-22-4xH200/ep_tensor",
              "2026-11-25-2xH100-3/before_ep_tensor"}


class Record:
    def __init__(self, name, row, measured, predicted):
        self.name, self.row, self.measured, self.predicted = name, row, measured, predicted
        self.why_not = NOT_CLAIMED.get((name, row["op"]))
        self.is_claimed = self.why_not is None

    def error(self):
        return self.predicted / self.measured - 1

    def is_off(self):
        return abs(self.error()) > LIMIT

    def what(self):
        domains = int(self.row.get("domains") or 1)
        far = ", %d domains" % domains if domains > 1 else ""
        return "%s, %d tokens, %d SMs%s" % (self.row["op"], self.row["tokens"], self.row["sms"], far)


def _moved(row, shape, domains, name):
    """The bytes of a row's own draw, which are rates times its time, whatever the ids were."""
    traffic = model.Traffic(shape, 1)
    seconds = row["p50"] * 1e3
    traffic.rows = row["logical"] * seconds
    traffic.wire = row["remote"] * seconds
    traffic.network = 0
    leaves_out = domains == 1 and row["layout"] == "rank" and name not in COPIED_ALL
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


def ep_record(row, notes, name):
    """Predicted p50, or the reason why not."""
    domains = int(row.get("domains") or 1)
    shape = model.Shape(row["ranks"], row["tokens"], row["ranks"] // domains, row["hidden"], row["topk"],
                        row["experts"], row["sms"])
    tensor = "out tensor" in notes.get("options", "")
    if domains > 1 and not row.get("floor"):
        return "across domains: route, and what no modelled wire carried"
    if row["op"] == "route":
        return model.route(shape)
    if row["op"] == "chain":
        return "a chain is the sum of its parts"
    if row["op"] == "combine" and "combine engine" in notes.get("options", ""):
        return "combine by copy engine"
    if row["op"] == "combine" and _pushes(row, notes):
        return "combine that pushes"
    if row["op"] == "dispatch" and "drain 1" in notes.get("options", ""):
        return "dispatch that drains"
    traffic = _moved(row, shape, domains, name)
    network = _floor_network(row, traffic) if domains > 1 else None
    if domains == 1 and row["layout"] == "rank":
        traffic.wire = _busiest(row, shape, traffic)
    if row["op"] == "dispatch":
        return model.dispatch(shape, row["dtype"], row["layout"], tensor, network, traffic)
    return model.combine(shape, row["layout"], tensor, network, traffic)


def ll_record(row, notes, _name):
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
        predicted = predict(row, report["notes"], name)
        if isinstance(predicted, str):
            reasons.append(predicted)
        else:
            measured = row["in-a-row"] if report["kind"] == "ll" else row["p50"]
            records.append(Record(name, row, measured, predicted))
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
