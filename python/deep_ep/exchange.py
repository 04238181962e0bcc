# SPDX-License-Identifier: Apache-2.0
"""A row of numbers from every rank to every other, on the device: by a dispatch whose experts are
the ranks themselves. What DeepEP's ranks tell each other before they send rows goes this way."""

from typing import Any, Optional, Sequence

import torch

import tern
from tern.tensors import capturing

from .streams import Streams

_MOST_IDS = 64  # of a token


class Exchange:
    def __init__(self, comm: tern.Communicator, streams: Streams) -> None:
        self.comm, self.streams = comm, streams
        self._ep: Optional[tern.EP] = None
        self._route: Any = None
        self._words = 0
        self._pad = torch.zeros(3, dtype=torch.int32, device=comm.device)

    def reserve(self, words: int) -> None:
        """COLLECTIVE: for rows of so many words."""
        if words <= self._words:
            return
        if capturing(self.comm):
            raise tern.BadState("a graph is being captured: run the same shapes once before")
        self.close()
        size = self.comm.size
        self._words = max(256, 1 << (words - 1).bit_length())
        tokens = -(-size // _MOST_IDS)
        self._ep = tern.EP(
            self.comm,
            num_experts=size,
            max_topk=min(size, _MOST_IDS),
            max_tokens=tokens,
            max_row_bytes=4 * self._words,
            max_routes=1,
        )
        ids = torch.full((tokens * min(size, _MOST_IDS),), -1, dtype=torch.int32)
        ids[:size] = torch.arange(size, dtype=torch.int32)
        ids = ids.view(tokens, -1).to(self.comm.device)
        self._route = self._ep.route(ids)

    def run(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """COLLECTIVE: int32 [ranks, words], of every rank its row, which is given in parts and has
        the same length on all. On the current stream."""
        words = sum(part.numel() for part in parts)
        self.reserve(words)
        for part in parts:
            assert part.dtype == torch.int32, f"counts are {part.dtype}: they must be int32"
        # A row is a multiple of 16 bytes; what is beyond its words nobody looks at.
        pad = self._pad[: -words % 4]
        rows = torch.cat([*parts, pad]).view(1, -1)
        if self._route.num_tokens > 1:
            rows = rows.repeat(self._route.num_tokens, 1)
        got = self._route.plain_dispatch(
            rows,
            None,
            cast=None,
            num_rows=self.comm.size,
            topk_idx=False,
            source=False,
            zero_padding=False,
            num_sms=None,
            empty=self.streams.empty,
        )
        return got.x[:, :words]

    def wait(self) -> None:
        """Until what run() gave is there; raises the fault if it never comes."""
        assert self._ep is not None
        self._ep.synchronize()

    def close(self) -> bool:
        """COLLECTIVE. Whether there was anything to close."""
        ep, self._ep, self._route = self._ep, None, None
        if ep is None:
            return False
        try:
            ep.synchronize()
            self.comm.barrier()
        finally:
            ep.close()
        return True
