# SPDX-License-Identifier: Apache-2.0
"""Statuses as exceptions.

Every status of tern.h has a class here, below Error and, where Python has a word for it, below that
too. The text is the sentence of the call that failed; `fault` is the record that a kernel left, if
it was a kernel that failed.
"""

import enum
from dataclasses import dataclass
from typing import Any, Dict, Optional, Tuple, Type

from . import _tern


class Status(enum.IntEnum):
    """enum tern_status."""

    OK = _tern.TERN_OK
    INVALID_ARGUMENT = _tern.TERN_INVALID_ARGUMENT
    UNSUPPORTED = _tern.TERN_UNSUPPORTED
    OUT_OF_MEMORY = _tern.TERN_OUT_OF_MEMORY
    NO_SPACE = _tern.TERN_NO_SPACE
    BAD_STATE = _tern.TERN_BAD_STATE
    SYSTEM_ERROR = _tern.TERN_SYSTEM_ERROR
    MISMATCH = _tern.TERN_MISMATCH
    TIMEOUT = _tern.TERN_TIMEOUT
    DISCONNECTED = _tern.TERN_DISCONNECTED
    DEVICE_ERROR = _tern.TERN_DEVICE_ERROR
    INTERNAL_ERROR = _tern.TERN_INTERNAL_ERROR


@dataclass(frozen=True)
class Fault:
    """What a kernel was doing when it gave up: struct tern_fault, with its numbers as they are
    there."""

    status: int
    operation: int
    awaited: int
    rank: int  # who wrote the record
    peer: int  # who was late, or what the record is about
    reporter: int
    block: int
    warp: int
    epoch: int
    expected: int
    seen: int
    elapsed_ns: int
    late: Tuple[int, ...]  # ranks that had not arrived at the deadline; () if a peer told
    topk: int
    num_experts: int
    text: str  # all of it in one sentence


class Error(RuntimeError):
    """Any failure of Tern."""

    status: Status
    fault: Optional[Fault] = None


class InvalidArgument(Error, ValueError):
    """An argument is wrong; its value is in the sentence. Every object is as before; but an expert
    id out of range has counted as -1 when Route.counts or EP.synchronize says so."""

    status = Status.INVALID_ARGUMENT


class Unsupported(Error, NotImplementedError):
    """This build, machine or configuration cannot do it."""

    status = Status.UNSUPPORTED


class OutOfMemory(Error, MemoryError):
    """Of window memory: open the communicator with more heap_bytes, or Communicator.grow."""

    status = Status.OUT_OF_MEMORY


class NoSpace(Error):
    """A buffer or a table given to Tern is too small."""

    status = Status.NO_SPACE


class BadState(Error):
    """The object is closed, in use by another thread, or not at the point where this call has a
    place."""

    status = Status.BAD_STATE


class SystemFailure(Error, OSError):
    """A call to the operating system failed."""

    status = Status.SYSTEM_ERROR


class Mismatch(Error):
    """Ranks disagree about a configuration or an operation."""

    status = Status.MISMATCH


class Timeout(Error, TimeoutError):
    """A rank did not arrive within the deadline."""

    status = Status.TIMEOUT


class Disconnected(Error, ConnectionError):
    """A rank closed its connection, or gave up."""

    status = Status.DISCONNECTED


class DeviceError(Error):
    """The device reported an error: the process is beyond repair."""

    status = Status.DEVICE_ERROR


class InternalError(Error):
    """An invariant of Tern does not hold."""

    status = Status.INTERNAL_ERROR


_CLASSES: Dict[int, Type[Error]] = {kind.status: kind for kind in Error.__subclasses__()}


def make(status: int, sentence: str, fault: Optional[Dict[str, Any]]) -> Error:
    """The exception for a status; the extension module calls this."""
    error = _CLASSES.get(status, Error)(sentence)
    error.status = Status(status)
    if fault is not None:
        error.fault = Fault(**{**fault, "late": tuple(fault["late"])})
    return error
