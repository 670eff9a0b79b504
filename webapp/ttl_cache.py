"""Values that are read again only when they are old, however many ask."""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class TtlCache(Generic[Value]):
    """The result of `read`, at most `keep_s` old; who comes while it is read waits for the same one."""

    def __init__(self, read: Callable[[], Value], keep_s: float) -> None:
        self._read = read
        self._keep_s = keep_s
        self._lock = threading.Lock()
        self._held: tuple[float, Value] | None = None

    def get(self) -> Value:
        """The value; whatever `read` raises comes through, and the next call tries again."""
        with self._lock:
            if self._held is None or time.monotonic() - self._held[0] > self._keep_s:
                self._held = (time.monotonic(), self._read())
            return self._held[1]
