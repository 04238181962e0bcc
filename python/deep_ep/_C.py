# SPDX-License-Identifier: Apache-2.0
"""What programs take from DeepEP's extension module itself."""

from .config import Config
from .event import EventHandle
from .layout import topk_idx_t

__all__ = ["Config", "EventHandle", "topk_idx_t"]
