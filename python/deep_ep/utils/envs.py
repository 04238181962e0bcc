# SPDX-License-Identifier: Apache-2.0
"""Ranks of test programs: WORLD_SIZE and RANK count nodes, the processes of a node are given."""

import os
import random
import sys
from typing import Any, Optional, Tuple

import torch
import torch.distributed as dist

from ..domains import get_logical_domain_size, get_physical_domain_size

__all__ = [
    "check_torch_deterministic",
    "dist_print",
    "get_global_seed",
    "get_local_seed",
    "get_logical_domain_size",
    "get_physical_domain_size",
    "init_dist",
    "init_seed",
]

_local_rank = 0
_seed = 0


def init_dist(local_rank: int, num_local_ranks: int, seed: int = 0) -> Tuple[int, int, Any]:
    """Joins the process group: (rank, ranks, group). Over nccl, with BF16 and the GPU as defaults
    of torch; without GPUs, or if TERN_MACHINE is cpu, over gloo."""
    global _local_rank
    nodes, node = int(os.getenv("WORLD_SIZE", 1)), int(os.getenv("RANK", 0))
    address = f"{os.getenv('MASTER_ADDR', '127.0.0.1')}:{os.getenv('MASTER_PORT', 8361)}"
    on_gpu = torch.cuda.is_available() and os.getenv("TERN_MACHINE") != "cpu"
    rank, size = node * num_local_ranks + local_rank, nodes * num_local_ranks
    if on_gpu:
        torch.cuda.set_device(local_rank)
    dist.init_process_group(
        backend="nccl" if on_gpu else "gloo",
        init_method=f"tcp://{address}",
        world_size=size,
        rank=rank,
    )
    torch.set_default_dtype(torch.bfloat16)
    if on_gpu and hasattr(torch, "set_default_device"):
        torch.set_default_device("cuda")
    _local_rank = local_rank
    init_seed(seed)
    return rank, size, dist.new_group(list(range(size)))


def init_seed(seed: int = 0) -> None:
    """Different random numbers on every rank."""
    global _seed
    _seed = seed
    torch.manual_seed(get_local_seed())
    random.seed(get_local_seed())


def get_global_seed() -> int:
    return _seed


def get_local_seed() -> int:
    return _seed * 1000003 + (dist.get_rank() if dist.is_initialized() else 0)


def dist_print(text: Any = "", once_in_node: bool = False) -> None:
    """Prints from every rank, or from one a node, and waits for all."""
    if not once_in_node or _local_rank == 0:
        print(text, file=sys.stdout, flush=True)
    dist.barrier()


def check_torch_deterministic() -> bool:
    """Whether torch fills new memory, which costs time; no more than that here."""
    fills: Optional[Any] = getattr(torch.utils, "deterministic", None)
    return torch.are_deterministic_algorithms_enabled() and bool(
        getattr(fills, "fill_uninitialized_memory", False)
    )
