"""Signs of life of a child: pulses that it sends through a pipe, or answers to a question that a thread asks it.

Neither can block the supervisor. A child that is silent for longer than its program's `alive_within_s` is frozen.
"""

import os
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Event, Thread
from typing import Protocol

# Longest silence of a process that works. Another process must take over a frozen process's work within 15 s, so that
# 10 s leave time for a restart; on a machine where processes wait longer than that for a CPU, nothing is served in
# time. Not tuned otherwise.
ALIVE_WITHIN_S = 10.0
# Longest silence before the first sign: a process loads libraries and a model, beside many that start. Not tuned.
START_WITHIN_S = 300.0
ASK_EVERY_S = 3.0  # less than a third of ALIVE_WITHIN_S. Not tuned otherwise.
ANSWER_WITHIN_S = ALIVE_WITHIN_S - ASK_EVERY_S  # a pause and an answer fit into ALIVE_WITHIN_S


@dataclass(frozen=True)
class Question:
    """Bytes that a server answers in any state; `address` is a Unix socket's path, or host and port.

    A server whose answer contains `is_over` lives but serves nobody.
    """

    address: str | tuple[str, int]
    sent: bytes
    is_over: bytes | None = None

    def is_answered(self) -> bool:
        """Whether an answer comes within ANSWER_WITHIN_S; an error message counts, because a busy server lives, too."""
        family = socket.AF_UNIX if isinstance(self.address, str) else socket.AF_INET
        if not isinstance(self.address, str) and ":" in self.address[0]:
            family = socket.AF_INET6
        try:
            with socket.socket(family) as connection:
                connection.settimeout(ANSWER_WITHIN_S)
                connection.connect(self.address)
                connection.sendall(self.sent)
                answer = connection.recv(4096)
                return bool(answer) and not (self.is_over and self.is_over in answer)
        except OSError:
            return False


def postgres_question(socket_path: str) -> Question:
    """Returns the question whether a session can begin.

    After a SIGTERM Postgres waits for the last session to end and refuses new ones; pools never end theirs, so only a
    restart helps.
    """
    parameters = b"user\0postgres\0database\0postgres\0\0"
    startup = struct.pack("!ii", 8 + len(parameters), 196608) + parameters
    return Question(socket_path, startup, is_over=b"the database system is shutting down")


def redis_question(host: str, port: int) -> Question:
    """Returns a PING as question; without a password the answer is an error, which is a sign of life as well."""
    return Question((host, port), b"PING\r\n")


def http_question(host: str, port: int, path: str) -> Question:
    """Returns a GET without keep-alive as question; a server that answers 503 serves nobody."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    return Question((host, port), f"GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n".encode(), is_over=b" 503 ")


class SignsOfLife(Protocol):
    """Receives the signs of life of one process."""

    def heard(self) -> bool:
        """Whether a sign came since the last call."""
        ...

    def close(self) -> None:
        """Stop receiving; the process has ended."""
        ...


class Pipe:
    """The reading end of the pipe of a process that sends pulses (`processes/signs_of_life.py`)."""

    def __init__(self) -> None:
        """Open the pipe; the process must inherit `child_end`."""
        self._end, self.child_end = os.pipe()
        os.set_blocking(self._end, False)
        os.set_blocking(self.child_end, False)

    def handed_over(self) -> None:
        """Close our copy of the child's end; call it once the process has started."""
        os.close(self.child_end)

    def heard(self) -> bool:
        """Whether the process has written since the last call."""
        try:
            return bool(os.read(self._end, 4096))
        except BlockingIOError:
            return False

    def close(self) -> None:
        """Close the pipe."""
        os.close(self._end)


class Asking(Thread):
    """A thread that asks a question again and again."""

    def __init__(self, question: Question) -> None:
        super().__init__(name="asking", daemon=True)
        self._question, self._answered, self._closed = question, Event(), Event()
        self.start()

    def run(self) -> None:
        """Repeat the question until closed."""
        while not self._closed.wait(ASK_EVERY_S):
            if self._question.is_answered():
                self._answered.set()

    def heard(self) -> bool:
        """Whether the question was answered since the last call."""
        answered = self._answered.is_set()
        self._answered.clear()
        return answered

    def close(self) -> None:
        """Stop asking."""
        self._closed.set()


class Silence:
    """Measures for how long one process has been silent, in seconds of its supervisor (`Supervisor._own_s`).

    The time for which the process waited for a CPU does not count: another process would wait as long.
    """

    def __init__(
        self,
        signs: SignsOfLife,
        alive_within_s: float,
        start_within_s: float,
        cpu_waits: Callable[[], Mapping[int, float]] = dict,
    ) -> None:
        """Before the first sign the process may be silent for `start_within_s`, or START_WITHIN_S if that is longer.

        `cpu_waits` returns the seconds that each thread of the process has waited for a CPU so far.
        """
        self._signs, self._alive_within_s, self._cpu_waits = signs, alive_within_s, cpu_waits
        self._waited: Mapping[int, float] = {}  # by thread: its seconds of waiting when the silence began
        self._bound_s = max(start_within_s, START_WITHIN_S)
        self._since: float | None = None

    def too_long(self, now: float) -> float | None:
        """Returns the seconds of silence if they exceed the bound, else None; `now` is the supervisor's `_own_s`."""
        heard = self._signs.heard()
        if heard:
            self._bound_s = self._alive_within_s
        if heard or self._since is None:
            self._since, self._waited = now, {}
        elif not self._waited:
            self._waited = self._cpu_waits()
        silent_s = now - self._since
        return silent_s if silent_s > self._bound_s and silent_s - self._starved_s() > self._bound_s else None

    def _starved_s(self) -> float:
        waits = self._cpu_waits().items()
        return max((waited_s - self._waited.get(thread, waited_s) for thread, waited_s in waits), default=0.0)

    def begin_anew(self) -> None:
        """Lets the process be silent for its whole bound from now on."""
        self._since = None

    def close(self) -> None:
        """Stop receiving; the process has ended."""
        self._signs.close()
