"""Caches a value for many calls until it is older than its time to live."""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")

# most seconds for which `spacing` keeps a value, so that one slow read at a restart has no lasting effect
MOST_SPACED_S = 15.0


class TtlCache(Generic[Value]):
    """The result of `read`, at most `ttl_s` seconds old; calls that come while it is read wait for the same result.

    A value that took long to read is kept longer: `spacing` times the duration of its read, at most MOST_SPACED_S.
    """

    def __init__(self, read: Callable[[], Value], ttl_s: float, spacing: float = 0.0) -> None:
        self._read = read
        self._ttl_s = ttl_s
        self._spacing = spacing
        self._took_s = 0.0
        self._lock = threading.Lock()
        self._cached: tuple[float, Value] | None = None  # when it was read, and the result

    def get(self) -> Value:
        """Returns the value; an error of `read` is raised and not cached, so the next call reads again."""
        with self._lock:
            ttl_s = max(self._ttl_s, min(MOST_SPACED_S, self._spacing * self._took_s))
            if self._cached is None or time.monotonic() - self._cached[0] > ttl_s:
                started = time.monotonic()
                value = self._read()
                self._took_s = time.monotonic() - started
                self._cached = (started, value)
            return self._cached[1]

    def forget(self) -> None:
        """Makes the next call read the value again."""
        with self._lock:
            self._cached = None
