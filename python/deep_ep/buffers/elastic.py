# SPDX-License-Identifier: Apache-2.0
"""DeepEP's module of ElasticBuffer."""

from ..elastic import ElasticBuffer
from ..elastic_handle import EPHandle

__all__ = ["EPHandle", "ElasticBuffer"]
