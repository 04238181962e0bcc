# SPDX-License-Identifier: Apache-2.0
"""Objects that `with` closes."""

from types import TracebackType
from typing import Optional, Type, TypeVar

T = TypeVar("T", bound="Closing")


class Closing:
    """Has close(), and is closed at the end of a `with`."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self: T) -> T:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()
