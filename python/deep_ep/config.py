# SPDX-License-Identifier: Apache-2.0
"""Configurations and sizes: what callers ask for before they make a Buffer.

Tern has no queues to tune. Of a Config it takes the number of processors, which also says how many
channels the matrices of a handle have; the sizes are DeepEP's figures, and Tern keeps within them
or takes more by itself.
"""

from functools import lru_cache
from typing import Dict, Tuple

NODE_RANKS = 8  # of DeepEP's nodes, which the internode forms speak of
_TOKEN_EXTRA = 8 + 128 * (8 + 4 + 4)  # of a queued token: its source, 128 ids, weights and scales


def _up(value: int, step: int) -> int:
    return -(-value // step) * step


class Config:
    """Processors, and chunks of DeepEP's queues."""

    def __init__(
        self,
        num_sms: int = 20,
        num_max_nvl_chunked_send_tokens: int = 6,
        num_max_nvl_chunked_recv_tokens: int = 256,
        num_max_rdma_chunked_send_tokens: int = 6,
        num_max_rdma_chunked_recv_tokens: int = 256,
    ) -> None:
        nvl = num_max_nvl_chunked_send_tokens, num_max_nvl_chunked_recv_tokens
        rdma = num_max_rdma_chunked_send_tokens, num_max_rdma_chunked_recv_tokens
        assert num_sms >= 0, f"num_sms is {num_sms}: it must not be negative"
        assert min(nvl + rdma) > 0, f"the chunks {nvl} and {rdma} must be above 0"
        rdma = rdma[0], _up(rdma[1], rdma[0])
        assert nvl[0] < nvl[1], f"an NVLink chunk of {nvl[0]} tokens must be below {nvl[1]}"
        assert 2 * rdma[0] <= rdma[1], f"an RDMA chunk of {rdma[0]} is over half of {rdma[1]}"
        self.num_sms = num_sms
        self.nvl_chunks: Tuple[int, int] = nvl
        self.rdma_chunks: Tuple[int, int] = rdma

    @property
    def num_channels(self) -> int:
        return max(1, self.num_sms // 2)

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        peers, nodes = min(num_ranks, NODE_RANKS), max(num_ranks // NODE_RANKS, 1)
        channels = self.num_sms // 2
        token = hidden_bytes + _TOKEN_EXTRA
        words = 4 * (2 * nodes + 3)
        return _up(channels * peers * (words + self.nvl_chunks[1] * token), 128)

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        if num_ranks <= NODE_RANKS:
            return 0
        nodes, channels = num_ranks // NODE_RANKS, self.num_sms // 2
        token = hidden_bytes + _TOKEN_EXTRA + 16
        words = 8 * (2 * NODE_RANKS + 2)
        return _up(channels * nodes * (words + 2 * self.rdma_chunks[1] * token), 128)


# By ranks: chunks of dispatch, of combine. A number between two has those of the lower.
_CHUNKS: Dict[int, Tuple[Tuple[int, ...], Tuple[int, ...]]] = {
    2: ((24, 256, 6, 128), (10, 256, 6, 128)),
    4: ((6, 256, 6, 128), (9, 256, 6, 128)),
    8: ((6, 256, 6, 128), (4, 256, 6, 128)),
    16: ((36, 288, 20, 128), (4, 288, 12, 128)),
    24: ((32, 288, 8, 128), (1, 288, 8, 128)),
    96: ((20, 480, 12, 128), (1, 480, 8, 128)),
    128: ((20, 560, 12, 128), (1, 560, 8, 128)),
    144: ((32, 720, 12, 128), (2, 720, 8, 128)),
    160: ((28, 720, 12, 128), (2, 720, 8, 128)),
}


@lru_cache(maxsize=None)
def recommended(num_sms: int, num_ranks: int, combine: bool) -> Config:
    """The same one each time: calls without a Config ask for it."""
    known = max([ranks for ranks in _CHUNKS if ranks <= num_ranks], default=2)
    return Config(num_sms, *_CHUNKS[known][combine])


def low_latency_bytes(num_max_tokens: int, hidden: int, num_experts: int) -> int:
    """DeepEP's size of its low-latency buffers."""
    scales = hidden // 128 * 4
    dispatch, combine = 16 + max(2 * hidden, hidden + scales), scales + 2 * hidden
    send = max(num_max_tokens * dispatch, num_experts * num_max_tokens * combine)
    receive = num_experts * num_max_tokens * max(dispatch, combine)
    total = 2 * (_up(num_experts * 4, 128) + send + receive)
    return (total + 128) // 128 * 128
