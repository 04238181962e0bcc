# SPDX-License-Identifier: Apache-2.0
"""The interface of DeepEP, on Tern: what is written for `deep_ep` runs unchanged.

    buffer = deep_ep.Buffer(group, num_nvl_bytes)

docs/deep_ep.md lists what differs. All of it is Python over the package `tern`; tensors of the CPU
are as good as those of a GPU.
"""

from tern import __version__

from .buffer import Buffer
from .config import Config
from .domains import get_logical_domain_size, get_physical_domain_size
from .elastic import ElasticBuffer
from .elastic_handle import EPHandle
from .event import EventHandle, EventOverlap
from .layout import topk_idx_t

__all__ = [
    "Buffer",
    "Config",
    "EPHandle",
    "ElasticBuffer",
    "EventHandle",
    "EventOverlap",
    "__version__",
    "get_logical_domain_size",
    "get_physical_domain_size",
    "topk_idx_t",
]
