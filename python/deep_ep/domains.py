# SPDX-License-Identifier: Apache-2.0
"""Which ranks are near each other, in DeepEP's words: nodes of eight."""

from typing import Tuple

import torch.distributed as dist

from . import config


def get_physical_domain_size(group: "dist.ProcessGroup") -> Tuple[int, int]:
    """(domains, ranks of each): nodes, and the ranks of a node."""
    size = dist.get_world_size(group)
    node = config.NODE_RANKS
    return (size // node, node) if size > node and size % node == 0 else (1, size)


def get_logical_domain_size(
    group: "dist.ProcessGroup", allow_hybrid_mode: bool = True
) -> Tuple[int, int]:
    """(scale-out ranks, scale-up ranks). Tern's routes are direct: every rank goes to every other
    one, so that there is one domain, however ranks reach each other."""
    return 1, dist.get_world_size(group)
