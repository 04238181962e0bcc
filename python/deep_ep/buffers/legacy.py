# SPDX-License-Identifier: Apache-2.0
"""DeepEP's module of Buffer."""

from ..buffer import Buffer

__all__ = ["Buffer"]
