#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tern-cost - what Tern's operations should take, from the cost model

  tern-cost.py check [FOLDER]   measurements below FOLDER (bench/results) beside predictions; the exit status
                                is 1 if one that is claimed is off by more than 15 per cent
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


def check(folder):
    records, left_out = cost_records.read_folder(folder)
    print("%-34s %-42s %9s %9s %7s" % ("file", "of", "measured", "predicted", "error"))
    for r in records:
        mark = "OFF" if r.is_off() else "" if r.is_claimed else "not claimed"
        print("%-34s %-42s %9.1f %9.1f %+6.1f%% %s"
              % (r.name, r.what(), r.measured, r.predicted, 100 * r.error(), mark))
    for reason, num in sorted(left_out.items()):
        print("# left out: %d of: %s" % (num, reason))
    claimed = [r for r in records if r.is_claimed]
    num_off = sum(r.is_off() for r in claimed)
    worst = max((abs(r.error()) for r in claimed), default=0)
    print("# %d predictions claimed, %d of them off by more than %.0f %%; the worst by %.1f %%"
          % (len(claimed), num_off, 100 * cost_records.LIMIT, 100 * worst))
    return 1 if num_off > 0 or not claimed else 0


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
        here = os.path.dirname(os.path.abspath(__file__))
        return check(rest[0] if rest else os.path.join(here, "../bench/results"))
    tables = {"parameters": parameters, "modelled": cost_plot.modelled_table, "forecast": cost_plot.table}
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
