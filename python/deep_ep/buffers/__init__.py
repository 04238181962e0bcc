# SPDX-License-Identifier: Apache-2.0
"""Where later versions of DeepEP have their buffers."""

from ..buffer import Buffer
from ..elastic import ElasticBuffer
from ..elastic_handle import EPHandle

__all__ = ["Buffer", "EPHandle", "ElasticBuffer"]
