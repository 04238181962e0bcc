# SPDX-License-Identifier: Apache-2.0
"""Tern: expert-parallel communication for mixture-of-experts models.

    comm = tern.Communicator.from_torch()   # the ranks of a torch process group
    ep = tern.EP(comm, num_experts=64, max_topk=8, max_tokens=4096, hidden=7168)
    route = ep.route(topk_idx)              # what one table of expert ids means for every rank
    rows = route.dispatch(x, topk_weights)  # tokens go to their experts ...
    sums = route.combine(experts(rows))     # ... and come home, summed

Small batches go by EP.ll_dispatch and EP.ll_combine, without a route. docs/python.md is the guide,
include/tern/tern.h the reference for what every call means. torch is imported when it is first
needed.
"""

from . import _tern
from .communicator import Communicator, create_id, id_from_address
from .ep import EP
from .errors import (
    BadState,
    DeviceError,
    Disconnected,
    Error,
    Fault,
    InternalError,
    InvalidArgument,
    Mismatch,
    NoSpace,
    OutOfMemory,
    Status,
    SystemFailure,
    Timeout,
    Unsupported,
)
from .low_latency import Batch
from .route import Route, RouteCounts, Rows, Sums

__version__ = _tern.version()

__all__ = [
    "BadState",
    "Batch",
    "Communicator",
    "DeviceError",
    "Disconnected",
    "EP",
    "Error",
    "Fault",
    "InternalError",
    "InvalidArgument",
    "Mismatch",
    "NoSpace",
    "OutOfMemory",
    "Route",
    "RouteCounts",
    "Rows",
    "Status",
    "Sums",
    "SystemFailure",
    "Timeout",
    "Unsupported",
    "create_id",
    "id_from_address",
]
