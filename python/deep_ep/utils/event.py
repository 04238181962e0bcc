# SPDX-License-Identifier: Apache-2.0
from ..event import EventHandle, EventOverlap

__all__ = ["EventHandle", "EventOverlap"]
