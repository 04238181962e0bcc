# SPDX-License-Identifier: Apache-2.0
"""Events: what a stream has to wait for. On a machine without GPUs all has happened when a call
returns, and an event is a word for that."""

from functools import lru_cache
from types import TracebackType
from typing import Any, Callable, Optional, Sequence, Type

import torch


@lru_cache(maxsize=None)
def has_gpus() -> bool:
    """As torch says, which asks the driver each time."""
    return torch.cuda.is_available()


class EventHandle:
    """An event on the stream that is current when it is made."""

    def __init__(self) -> None:
        self.event: Optional[torch.cuda.Event] = None
        if has_gpus():
            self.event = torch.cuda.Event()
            self.event.record(torch.cuda.current_stream())

    def current_stream_wait(self) -> None:
        """Makes the current stream wait for it."""
        if self.event is not None:
            torch.cuda.current_stream().wait_event(self.event)


class EventOverlap:
    """An event, or None, with tensors that must live until it; `with` waits at its end."""

    def __init__(
        self, event: Optional[EventHandle] = None, extra_tensors: Optional[Sequence[Any]] = None
    ) -> None:
        self.event = event
        self.extra_tensors = extra_tensors
        self._release = False
        self._after_wait: Optional[Callable[[], Any]] = None

    def current_stream_wait(self, release_handle: bool = False) -> None:
        """Makes the current stream wait; then calls the function that was registered, once.
        release_handle: lets go of the event and the tensors."""
        assert self.event is not None, "there is no event to wait for: the call was not async"
        self.event.current_stream_wait()
        after, self._after_wait = self._after_wait, None
        if after is not None:
            after()
        if release_handle:
            self.event = self.extra_tensors = None

    def register_hook_after_wait(self, hook: Callable[[], Any]) -> None:
        self._after_wait = hook

    def __call__(self, release_handle: bool = False) -> "EventOverlap":
        """For `with event(True):`."""
        self._release = release_handle
        return self

    def __enter__(self) -> "EventOverlap":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if self.event is not None:
            self.current_stream_wait(self._release)


def handle_of(event: Any) -> Optional[EventHandle]:
    """The event of what a caller gave as previous_event: an EventOverlap or an EventHandle."""
    return event.event if isinstance(event, EventOverlap) else event
