"""Caches values for many calls until they are older than their time to live."""

import math
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

Key = TypeVar("Key")
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


class KeyedTtlCache(Generic[Key, Value]):
    """The results of `read` by its argument, each at most `ttl_s` seconds old; what is not found is not cached.

    All results are dropped together every `ttl_s` seconds, so that no memory is kept for keys that come no more.
    """

    def __init__(self, read: Callable[[Key], Value | None], ttl_s: float) -> None:
        self._read, self._ttl_s = read, ttl_s
        self._cached: dict[Key, Value] = {}
        self._since = -math.inf

    def get(self, key: Key, now: float) -> Value | None:
        """Returns the value at `now`, in monotonic seconds, or None if there is none. Raises what `read` raises."""
        if now - self._since > self._ttl_s:
            self._cached, self._since = {}, now
        cached = self._cached  # a slow read must not store its old value in a later interval's dict
        if key in cached:
            return cached[key]
        value = self._read(key)
        if value is not None:
            cached[key] = value
        return value
