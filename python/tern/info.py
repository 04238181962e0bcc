# SPDX-License-Identifier: Apache-2.0
"""python -m tern.info: what this installation of Tern has, and what it finds here."""

import platform
import sys
from pathlib import Path

from . import Communicator, Error, __version__, _tern, create_id


def _torch() -> str:
    try:
        import torch
    except ImportError as error:
        return f"no ({error})"
    return f"{torch.__version__}, cuda {torch.version.cuda or 'no'}"


def _machine(name: str) -> str:
    """The description of a communicator of one rank, or why there is none."""
    try:
        with Communicator(create_id("127.0.0.1"), 0, 1, machine=name, heap_bytes=2**21) as comm:
            return comm.describe().rstrip().replace("\n", "\n    ")
    except (
        Error,
        ImportError,
        RuntimeError,
        AssertionError,
    ) as error:  # the last two are torch's, without a GPU
        return f"no ({error})"


def main() -> int:
    print(f"tern {__version__}, in {Path(_tern.__file__).parent}")
    print(f"python {platform.python_version()}, torch {_torch()}")
    for name in ("cpu", "cuda"):
        print(f"machine {name}: {_machine(name)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
