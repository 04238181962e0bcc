# SPDX-License-Identifier: Apache-2.0
"""Measurements as tern-bench has them: notes, a table, and JSON of the same form."""

import json
import math
import platform
from pathlib import Path
from typing import Any, Dict, List, Mapping

from . import __version__


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def about(machine: str) -> Dict[str, str]:
    """What every measurement names: versions, and what it ran on."""
    import torch

    what = torch.cuda.get_device_name() if machine == "cuda" else _processor()
    return {
        "tern": __version__,
        "machine": f"{machine}, {what}",
        "python": f"{platform.python_version()}, torch {torch.__version__}",
    }


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        places = 2 if abs(value) < 10 else 1 if abs(value) < 1e4 else 0
        return f"{value:.{places}f}"
    return str(value)


def show(notes: Mapping[str, str], units: Mapping[str, str], rows: List[Dict[str, Any]]) -> None:
    """Notes and a table, without columns that are empty in every row."""
    for key, text in notes.items():
        print(f"# {key}: {text}")
    names = [name for name in units if any(row.get(name) is not None for row in rows)]
    lines = [names, [units[name] for name in names]]
    lines += [[_cell(row.get(name)) for name in names] for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(names))]
    for line in lines:
        cells = [
            cell.ljust(width) if name == "op" else cell.rjust(width)
            for cell, width, name in zip(line, widths, names)
        ]
        print("  ".join(cells).rstrip())


def write(
    path: str, kind: str, notes: Mapping[str, str], units: Mapping[str, str], rows: List[Any]
) -> None:
    def told(value: Any) -> Any:
        return None if isinstance(value, float) and not math.isfinite(value) else value

    lines = [json.dumps({name: told(row.get(name)) for name in units}) for row in rows]
    head = json.dumps({"format": 1, "kind": kind, "notes": notes, "units": units}, indent=2)
    text = head[:-2] + ',\n  "rows": [\n    ' + ",\n    ".join(lines) + "\n  ]\n}\n"
    Path(path).write_text(text)
