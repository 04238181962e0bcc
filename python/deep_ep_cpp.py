# SPDX-License-Identifier: Apache-2.0
"""The name that DeepEP's extension module had before its second version."""

from deep_ep._C import Config, EventHandle, topk_idx_t

__all__ = ["Config", "EventHandle", "topk_idx_t"]
