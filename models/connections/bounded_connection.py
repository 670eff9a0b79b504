"""Connections that give up on a silent Postgres, so that no thread waits for it without bound.

The server's own time-outs do not help while the server is frozen, and TCP's do not work on a Unix socket.
"""

from collections.abc import Generator
from threading import Lock
from time import monotonic
from typing import Any, TypeVar

import psycopg
from psycopg.errors import _WaitTimeout  # what psycopg's own wait raises; there is no public name for it

# After a silent answer every use fails at once for this long; then one use tries again. Longer delays the recovery,
# shorter has more threads wait. Not tuned.
PAUSE_S = 0.5

T = TypeVar("T")


class DatabaseSilent(psycopg.OperationalError):
    """Postgres gave no answer in time; the connection is closed."""


class PostgresSilence:
    """Remembers that Postgres was silent, so that not every thread has to find it out by waiting; thread-safe."""

    def __init__(self, answer_within_s: float) -> None:
        self.answer_within_s = answer_within_s
        self._lock = Lock()
        self._next_try_at: float | None = None  # None while Postgres answers

    def check(self) -> None:
        """Return if this use may try; raises DatabaseSilent while another one finds out whether Postgres is back."""
        if self._next_try_at is None:
            return
        with self._lock:
            now = monotonic()
            if self._next_try_at is not None and now < self._next_try_at:
                raise DatabaseSilent("Postgres was silent a moment ago")
            self._next_try_at = now + self.answer_within_s + PAUSE_S

    def begin(self) -> None:
        """No answer came in time."""
        with self._lock:
            self._next_try_at = monotonic() + PAUSE_S

    def end(self) -> None:
        """An answer came."""
        self._next_try_at = None


class BoundedConnection(psycopg.Connection[Any]):
    """A connection whose every wait for the server ends after `silence.answer_within_s`."""

    silence: PostgresSilence | None = None  # while it is opened, `connect_timeout` bounds the waits

    def wait(self, gen: Generator[Any, Any, T], interval: float = 0.1, timeout: float | None = None) -> T:
        """Let psycopg wait; raises DatabaseSilent after the bound, unless the caller gave one (for notifications)."""
        if timeout is not None:  # psycopg wakes up every `interval` to hear Ctrl-C, which no thread of ours waits for
            return super().wait(gen, max(interval, timeout), timeout)
        if self.silence is None:
            return super().wait(gen, interval, timeout)
        try:
            answer = super().wait(gen, interval, self.silence.answer_within_s)
        except _WaitTimeout:
            self.silence.begin()
            self.close()
            raise DatabaseSilent(f"Postgres gave no answer within {self.silence.answer_within_s:g} s") from None
        except psycopg.Error:
            self.silence.end()  # an error is an answer
            raise
        self.silence.end()
        return answer
