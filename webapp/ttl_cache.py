"""A value that many calls share and that is read again only once it is older than its time to live."""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class TtlCache(Generic[Value]):
    """The result of `read`, at most `ttl_s` seconds old; calls that come while it is read wait for the same result."""

    def __init__(self, read: Callable[[], Value], ttl_s: float) -> None:
        self._read = read
        self._ttl_s = ttl_s
        self._lock = threading.Lock()
        self._cached: tuple[float, Value] | None = None  # when it was read, and the result

    def get(self) -> Value:
        """The value. An error of `read` is raised here and not cached: the next call reads again."""
        with self._lock:
            if self._cached is None or time.monotonic() - self._cached[0] > self._ttl_s:
                self._cached = (time.monotonic(), self._read())
            return self._cached[1]

    def forget(self) -> None:
        """Read again at the next call."""
        with self._lock:
            self._cached = None
