# SPDX-License-Identifier: Apache-2.0
"""What programs and tests import beside the Buffer."""

from ..event import EventHandle, EventOverlap
from . import envs, event, gate, math, refs, semantic, testing

__all__ = [
    "EventHandle",
    "EventOverlap",
    "envs",
    "event",
    "gate",
    "math",
    "refs",
    "semantic",
    "testing",
]
