# SPDX-License-Identifier: Apache-2.0
"""Small words of Python."""

import functools
import weakref
from typing import Any, Callable, Optional, TypeVar

T = TypeVar("T")


def value_or(value: Optional[T], default: T) -> T:
    return default if value is None else value


def weak_lru(maxsize: Optional[int] = 128, typed: bool = False) -> Callable[..., Any]:
    """functools.lru_cache for methods; it does not keep the object."""

    def wrap(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.lru_cache(maxsize, typed)
        def cached(holder: Any, *args: Any, **options: Any) -> Any:
            return method(holder(), *args, **options)

        @functools.wraps(method)
        def call(self: Any, *args: Any, **options: Any) -> Any:
            return cached(weakref.ref(self), *args, **options)

        return call

    return wrap
