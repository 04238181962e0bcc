# SPDX-License-Identifier: Apache-2.0
"""Operations on a stream of the Buffer's own, beside the caller's.

An operation begins behind `previous_event`, or behind all that the caller's stream holds; the
caller's stream waits for it, unless it is async and an event says when it is over. What it
allocates belongs to its own stream. One that fails is waited for, too. On a machine without GPUs a
call returns when it has run.

Window memory whose tensors are gone is taken again, and written by peers, behind all that its own
stream has waited for; torch, which did not allocate it, knows nothing of who else reads it
(record_stream). So one stream of callers has outputs there, the first that gets some, from
operations that wait for all that it holds. Other outputs are torch's memory.
"""

import contextlib
from typing import Any, Iterator, List, Optional, Sequence, Tuple

import torch

import tern
from tern.tensors import capturing

from .event import EventHandle, EventOverlap, handle_of


class Streams:
    def __init__(self, comm: tern.Communicator) -> None:
        self.comm = comm
        self.cuda = comm.machine == "cuda"
        self.own: Any = torch.cuda.Stream(comm.device, priority=-1) if self.cuda else None
        self.window = True  # outputs may be in window memory
        self._reader: Any = None  # the stream of callers that has some there
        self._callers: Any = None  # that of the latest operation

    @contextlib.contextmanager
    def operation(
        self,
        previous_event: Any = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> Iterator["Operation"]:
        assert not allocate_on_comm_stream or (
            previous_event is not None and async_finish
        ), "allocate_on_comm_stream needs previous_event and async_finish"
        previous = handle_of(previous_event)
        self.begin(waits=previous is None)
        operation = Operation(self, async_finish)
        if not self.cuda:
            yield operation
            return
        callers = self._callers
        try:
            with torch.cuda.stream(self.own):
                if previous is None or previous.event is None:
                    self.own.wait_stream(callers)
                else:
                    self.own.wait_event(previous.event)
                yield operation
                for tensor in operation.made:
                    tensor.record_stream(callers)
                if async_finish:
                    for tensor in operation.read:
                        tensor.record_stream(self.own)
                    operation.event = EventHandle()
        except BaseException:  # something may have been issued, and nobody gets an event
            callers.wait_stream(self.own)
            raise
        if not async_finish:
            callers.wait_stream(self.own)

    def begin(self, waits: bool = True) -> None:
        """On the caller's stream, before an operation: whether its outputs may be in window memory.
        waits: it waits for all that the caller's stream holds."""
        if self.cuda:
            self._callers = torch.cuda.current_stream(self.comm.device)
            # A graph must have its outputs to itself, for as long as it is replayed.
            self.window = (
                waits and self._reader in (None, self._callers) and not capturing(self.comm)
            )

    def need_window(self) -> bool:
        """In operation(), for what has room nowhere else: waits for the stream that reads window
        memory, if that was not done. False: a graph is captured, which gets none."""
        if not self.window and not capturing(self.comm):
            if self._reader is not None:
                self.own.wait_stream(self._reader)
            self._callers, self.window = self._reader, True
        return self.window

    def finish(self) -> None:
        """Until nothing runs on the device: replays of graphs are known to nobody else."""
        if self.cuda:
            torch.cuda.synchronize(self.comm.device)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Memory for an output: in the window, where peers write it, if that is allowed and has
        room; else torch's, which staging serves."""
        if self.window:
            with contextlib.suppress(tern.OutOfMemory):
                made = self.comm.empty(tuple(shape), dtype)
                self._reader = self._callers
                return made
        return torch.empty(tuple(shape), dtype=dtype, device=self.comm.device)


class Operation:
    """One of them: the tensors that it reads and makes, for the streams, and its event."""

    def __init__(self, streams: Streams, async_finish: bool) -> None:
        self.asynchronous = async_finish
        self.read: List[torch.Tensor] = []
        self.made: List[torch.Tensor] = []
        self.event: Optional[EventHandle] = None

    def reads(self, *values: Any) -> None:
        self.read += _tensors(values)

    def makes(self, *values: Any) -> None:
        self.made += _tensors(values)

    def overlap(self) -> EventOverlap:
        """After its end: what the caller gets."""
        if not self.asynchronous:
            return EventOverlap(None)
        if self.event is None:  # no GPU
            self.event = EventHandle()
        return EventOverlap(self.event, tuple(self.read))


def _tensors(values: Tuple[Any, ...]) -> List[torch.Tensor]:
    """The tensors among values and tuples of values."""
    found: List[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            found += _tensors(tuple(value))
    return found
