"""Bounds what repeated warnings and errors write: a broker that is away must not fill the disk with one traceback."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from threading import Lock
from time import monotonic

WINDOW_S = 10.0  # within it MOST_LINES of a kind are written; the next one afterwards says how many were left out
MOST_LINES = 5  # a tick's error comes twenty times a second: the log then grows by one line every 2 s. Not tuned
MOST_KINDS = 1000  # kinds remembered; a library that puts values into its text makes more of them than that


@dataclass(slots=True)
class _Seen:
    since: float
    lines: int = 0
    left_out: int = 0


class RepeatedLines:
    """Counts lines by kind; any thread may call it."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._seen: dict[Hashable, _Seen] = {}
        self._lock = Lock()

    def left_out(self, kind: Hashable) -> int | None:
        """None if this line shall not be written; else how many of its kind were left out before it."""
        now = self._clock()
        with self._lock:
            if len(self._seen) > MOST_KINDS:
                self._seen.clear()
            seen = self._seen.setdefault(kind, _Seen(now))
            if now - seen.since > WINDOW_S:
                left_out = seen.left_out
                self._seen[kind] = _Seen(now, lines=1)
                return left_out
            if seen.lines >= MOST_LINES:
                seen.left_out += 1
                return None
            seen.lines += 1
            return 0
