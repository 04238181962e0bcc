# SPDX-License-Identifier: Apache-2.0
"""The communicator of a buffer, with what programs ask the `runtime` of DeepEP's for."""

from typing import Any

import tern

from .config import NODE_RANKS
from .layout import has_nodes


class Runtime(tern.Communicator):
    comm_stream: Any = None

    def is_available(self) -> bool:
        return self._raw is not None

    def is_internode_available(self) -> bool:
        return self.is_available() and self.get_num_rdma_ranks() > 1

    def get_num_rdma_ranks(self) -> int:
        """Nodes, in DeepEP's words: of 8 ranks if they are full, else one."""
        return self.size // NODE_RANKS if has_nodes(self.size, NODE_RANKS) else 1

    def get_rdma_rank(self) -> int:
        """This rank's node."""
        return self.rank // NODE_RANKS if has_nodes(self.size, NODE_RANKS) else 0

    def get_local_device_id(self) -> int:
        return self.place[1]

    def get_comm_stream(self) -> Any:
        return self.comm_stream
