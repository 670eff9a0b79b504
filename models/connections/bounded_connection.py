"""Connections that stop waiting for a silent Postgres, so that every thread's wait for it is bounded.

The server's own time-outs have no effect while the server is frozen, and TCP's do not work on a Unix socket. A slow
statement alone does not count as silence. If a trivial statement on a new connection has no answer either, all uses of
connections fail at once.
"""

from collections.abc import Callable, Generator
from threading import Lock
from time import monotonic
from typing import Any, TypeVar

import psycopg
from psycopg.errors import _WaitTimeout  # what psycopg's own wait raises; there is no public name for it

# After Postgres was silent, each use of a connection fails at once for this many seconds; the next use then tries
# whether Postgres answers. A longer pause delays the recovery, a shorter one makes more threads wait. Not tuned.
PAUSE_S = 0.5

T = TypeVar("T")


class DatabaseSilent(psycopg.OperationalError):
    """Postgres gave no answer in time; the connection is closed."""


class StatementTooSlow(psycopg.OperationalError):
    """Postgres answers, but gave no answer to this statement in time; its connection is closed."""


class PostgresSilence:
    """Remembers that Postgres was silent, so that the other threads fail at once instead of waiting; thread-safe."""

    def __init__(self, answer_within_s: float, connect: Callable[[], "BoundedConnection"]) -> None:
        """`connect` opens the connection for a trivial statement."""
        self.answer_within_s = answer_within_s
        self._connect = connect
        self._lock, self._asking = Lock(), Lock()
        self._asked_at, self._is_silent = 0.0, False
        self._next_try_at: float | None = None  # None while Postgres answers

    def check(self) -> None:
        """Raises DatabaseSilent during the pause, and while another thread tries whether Postgres answers again."""
        if self._next_try_at is None:
            return
        with self._lock:
            now = monotonic()
            if self._next_try_at is not None and now < self._next_try_at:
                raise DatabaseSilent("Postgres was silent a moment ago")
            self._next_try_at = now + self.answer_within_s + PAUSE_S

    def confirm(self) -> bool:
        """Returns whether a trivial statement gets no answer, and begins a pause if so; one thread tries it for all."""
        began = monotonic()
        with self._asking:
            if self._asked_at < began:
                self._is_silent = not self._answers()
                self._asked_at = monotonic()
            return self._is_silent

    def _answers(self) -> bool:
        try:
            with self._connect() as connection:
                connection.within_s = self.answer_within_s
                connection.execute("select 1")
        except (DatabaseSilent, psycopg.errors.ConnectionTimeout):
            self.begin()
            return False
        except psycopg.Error:
            pass  # a refusal is an answer
        return True

    def begin(self) -> None:
        """Begins a pause: no answer came in time."""
        with self._lock:
            self._next_try_at = monotonic() + PAUSE_S

    def end(self) -> None:
        """Ends the pause: an answer came."""
        self._next_try_at = None


class BoundedConnection(psycopg.Connection[Any]):
    """A connection whose every wait for the server ends after `within_s`."""

    within_s: float | None = None  # None while the connection is being opened, which `connect_timeout` bounds
    silence: PostgresSilence | None = None  # without it, a wait without an answer counts as silence at once

    def wait(self, gen: Generator[Any, Any, T], interval: float = 0.1, timeout: float | None = None) -> T:
        """Waits as psycopg does, within the bound and `timeout`; raises DatabaseSilent or StatementTooSlow."""
        if timeout is not None:  # psycopg wakes up every `interval` for Ctrl-C, which no thread here handles
            return super().wait(gen, max(interval, timeout), timeout)
        if self.within_s is None:
            return super().wait(gen, interval, timeout)
        try:
            answer = super().wait(gen, interval, self.within_s)
        except _WaitTimeout:
            self.close()
            if self.silence is None or self.silence.confirm():
                raise DatabaseSilent(f"Postgres gave no answer within {self.within_s:g} s") from None
            raise StatementTooSlow(f"this statement had no answer within {self.within_s:g} s") from None
        except psycopg.Error:
            self._heard()  # the server answers with an error
            raise
        self._heard()
        return answer

    def _heard(self) -> None:
        if self.silence is not None:
            self.silence.end()
