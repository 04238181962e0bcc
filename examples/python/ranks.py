# SPDX-License-Identifier: Apache-2.0
"""Starts an example's ranks: those of torchrun, or of whatever sets RANK and WORLD_SIZE; else
processes of its own, one a GPU, or four on the CPU."""

import os
import sys
import tempfile
from typing import Callable

import torch
import torch.distributed as dist

import tern

Example = Callable[[tern.Communicator], None]
OPTIONS = dict(heap_bytes=2**26, timeout_ms=60000)


def on_gpus() -> bool:
    return torch.cuda.is_available() and os.environ.get("TERN_MACHINE", "auto") != "cpu"


def _rank(rank: int, size: int, meet: str, example: Example) -> None:
    if on_gpus():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank)) % torch.cuda.device_count())
    else:
        torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=size)
    with tern.Communicator.from_torch(machine="cuda" if on_gpus() else "cpu", **OPTIONS) as comm:
        example(comm)
        comm.barrier()
    dist.destroy_process_group()


def run(example: Example) -> None:
    """Calls example(comm) on every rank."""
    if "WORLD_SIZE" in os.environ:
        _rank(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "env://", example)
        return
    size = torch.cuda.device_count() if on_gpus() else 4
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_rank, (size, f"file://{folder}/meet", example), nprocs=size)


def close_to(have: torch.Tensor, wanted: torch.Tensor, what: str) -> float:
    """The relative error; ends the example where it is more than BF16, with 8 bits, explains."""
    error = float((have.float() - wanted.float()).norm() / wanted.float().norm())
    if not error < 0.01:
        sys.exit(f"{what}: off by {100 * error:.2f} %")
    return error
