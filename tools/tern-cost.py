#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tern-cost - what Tern's operations should take, from the cost model

  tern-cost.py check [FOLDER]   measurements below FOLDER (bench/results) beside predictions; the exit status
                                is 1 if one that is claimed is off by more than 15 per cent, or
                                if one that is said not to be claimed is not there
  tern-cost.py claims           how many predictions there are beside bench/results, as Markdown: claimed, and
                                not claimed by reasons
  tern-cost.py parameters       the model's numbers, as a table of Markdown
  tern-cost.py modelled         what domains over the software NIC should take, likewise
  tern-cost.py forecast         16 to 2048 ranks on two networks, likewise
  tern-cost.py plot FILE.svg    the same drawn

It needs Python 3.8 and nothing else. NAME=VALUE changes a parameter: tern-cost.py forecast nic_rate=100
"""
import os
import sys
sys.dont_write_bytecode = True

import cost_model as model
import cost_plot
import cost_records


RESULTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../bench/results")


def worst_of(records):
    return max(records, key=lambda r: abs(r.error()), default=None)


def summary(records, word):
    """What a part of the predictions is worth, in a line."""
    num_off, worst = sum(r.is_off() for r in records), worst_of(records)
    return ("%d predictions %s, %d of them off by more than %.0f %%; the worst by %.1f %%"
            % (len(records), word, num_off, 100 * cost_records.LIMIT, 100 * abs(worst.error()) if worst else 0))


def summaries(records):
    return [summary([r for r in records if r.is_claimed], "claimed"),
            summary([r for r in records if not r.is_claimed], "not claimed")]


def check(folder):
    records, left_out = cost_records.read_folder(folder or RESULTS)
    print("%-34s %-42s %9s %9s %7s" % ("file", "of", "measured", "predicted", "error"))
    for r in records:
        mark = "not claimed" if not r.is_claimed else "OFF" if r.is_off() else ""
        print("%-34s %-42s %9.1f %9.1f %+6.1f%% %s"
              % (r.name, r.what(), r.measured, r.predicted, 100 * r.error(), mark))
    for reason, num in sorted(left_out.items()):
        print("# left out: %d of: %s" % (num, reason))
    unused = [] if folder else cost_records.unused(records)
    for name, op in unused:
        print("# NOT_CLAIMED has %s of %s, which is not there" % (op, name))
    for line in summaries(records):
        print("# " + line)
    claimed = [r for r in records if r.is_claimed]
    return 1 if unused or not claimed or any(r.is_off() for r in claimed) else 0


def claims():
    """Lines of Markdown."""
    records, _ = cost_records.read_folder(RESULTS)
    lines = ["    " + line for line in summaries(records)]
    lines += ["", "| not claimed, because | predictions | off | the worst by | which is |", "|---|---|---|---|---|"]
    reasons = {}
    for r in records:
        if not r.is_claimed:
            reasons.setdefault(r.why_not, []).append(r)
    for reason, of in sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0])):
        worst = worst_of(of)
        lines.append("| %s | %d | %d | %+.0f %% | %s: %s |"
                     % (reason, len(of), sum(r.is_off() for r in of), 100 * worst.error(), worst.name, worst.what()))
    return lines


def parameters():
    """Lines of Markdown."""
    lines = ["| parameter | value | | from |", "|---|---|---|---|"]
    for name, (number, unit, kind, source) in model.PARAMETERS.items():
        lines.append("| %s | %g %s | %s | %s |" % (name, number, unit, kind, source))
    return lines


def change(word):
    name, _, number = word.partition("=")
    if name not in model.PARAMETERS:
        sys.exit("tern-cost.py: no parameter %s; `parameters` lists them" % name)
    try:
        model.PARAMETERS[name] = (float(number),) + model.PARAMETERS[name][1:]
    except ValueError:
        sys.exit("tern-cost.py: %s: '%s' is no number" % (name, number))


def main(words):
    for word in words:
        if "=" in word:
            change(word)
    words = [word for word in words if "=" not in word]
    command, rest = (words[0], words[1:]) if words else ("help", [])
    if command == "check" and len(rest) <= 1:
        return check(rest[0] if rest else None)
    tables = {"parameters": parameters, "claims": claims, "modelled": cost_plot.modelled_table, "forecast": cost_plot.table}
    if command in tables and not rest:
        print("\n".join(tables[command]()))
        return 0
    if command == "plot" and len(rest) == 1:
        with open(rest[0], "w", encoding="utf-8") as file:
            file.write(cost_plot.drawing())
        return 0
    print(__doc__, end="")
    return 0 if command in ("help", "--help", "-h") else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
