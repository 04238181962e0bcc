# SPDX-License-Identifier: Apache-2.0
"""A row of numbers from every rank to every other, on the device: by a dispatch whose experts are
the ranks themselves. What DeepEP's ranks tell each other before they send rows goes this way."""

from typing import Any, List, Optional, Sequence, Tuple

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
        # Graphs hold addresses: whether one has exchanges of this EP object, and what is in one and
        # was replaced by larger ones.
        self._is_captured = False
        self._left: List[Tuple[tern.EP, Any]] = []
        self._pad = torch.zeros(3, dtype=torch.int32, device=comm.device)

    def reserve(self, words: int) -> None:
        """COLLECTIVE: for rows of so many words."""
        if words <= self._words:
            return
        if capturing(self.comm):
            raise tern.BadState("a graph is being captured: run the same shapes once before")
        self._replace()
        size = self.comm.size
        room = max(256, 1 << (words - 1).bit_length())
        tokens = -(-size // _MOST_IDS)
        self._ep = tern.EP(
            self.comm,
            num_experts=size,
            max_topk=min(size, _MOST_IDS),
            max_tokens=tokens,
            max_row_bytes=4 * room,
            max_routes=1,
        )
        ids = torch.full((tokens * min(size, _MOST_IDS),), -1, dtype=torch.int32)
        ids[:size] = torch.arange(size, dtype=torch.int32)
        ids = ids.view(tokens, -1).to(self.comm.device)
        self._route = self._ep.route(ids)
        self._words = room

    def run(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """COLLECTIVE: int32 [ranks, words], of every rank its row, which is given in parts and has
        the same length on all. On the current stream."""
        words = sum(part.numel() for part in parts)
        self.reserve(words)
        if not self._is_captured and capturing(self.comm):
            self._is_captured = True
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
        eps = [ep for ep, _ in self._left] + ([self._ep] if self._ep is not None else [])
        self._ep = self._route = None
        self._words = 0
        self._left.clear()
        if not eps:
            return False
        try:
            self._meet(eps)
        finally:
            for ep in eps:
                ep.close()
        return True

    def _replace(self) -> None:
        """COLLECTIVE: no EP object, until a larger one is opened. What a graph has stays."""
        ep, route = self._ep, self._route
        self._ep = self._route = None
        self._words = 0
        if ep is None:
            return
        try:
            self._meet([ep])
        finally:
            if self._is_captured:
                self._left.append((ep, route))
                self._is_captured = False
            else:
                ep.close()

    def _meet(self, eps: Sequence[tern.EP]) -> None:
        """COLLECTIVE: until nothing of theirs is under way."""
        for ep in eps:
            ep.synchronize()
        self.comm.barrier()
