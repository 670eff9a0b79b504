"""Turns at the CPU: calls that wait for answers are taken in, and answered, a few at a time.

A process uses one core. When a thousand chats come at once, or a hundred answers, each of them takes milliseconds of
it; what clients send meanwhile and do not wait with, such as submissions, would be served behind all of them. Only
calls that wait stand in line for turns, so the others are served between two of them.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Semaphore
from typing import Self
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from flask import request

TURN = "magnus.turn"  # in the WSGI environment
WAITING_CALLS = ("/v1/chat/completions", "/v1/completions")  # each waits for its answer, or streams it
# Calls that are taken in at once, and those that are answered at once. One alone leaves the process idle while Postgres
# works for it; each more is another one that a submission waits behind.
AT_ONCE = 4


class CpuTurn:
    """One call's turn; while it waits for its answer, others have theirs."""

    def __init__(self, taken_in: Semaphore, answered: Semaphore) -> None:
        self._taken_in, self._answered = taken_in, answered
        self._held: Semaphore | None = None

    def begin(self) -> None:
        """Stand in line to be taken in."""
        self._taken_in.acquire()
        self._held = self._taken_in

    @contextmanager
    def given_up(self) -> Iterator[None]:
        """Let others have their turns meanwhile, then stand in line to be answered."""
        self.end()
        try:
            yield
        finally:
            self._answered.acquire()
            self._held = self._answered

    def end(self) -> None:
        """Let the next one have its turn."""
        if self._held is not None:
            self._held.release()
            self._held = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def in_turns(app: WSGIApplication, at_once: int = AT_ONCE) -> WSGIApplication:
    """The app, each of whose calls finds a turn in its environment, to begin with `take_turn`.

    It ends with the call, of a stream with its first byte.
    """
    taken_in, answered = Semaphore(at_once), Semaphore(at_once)

    def taken(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        with CpuTurn(taken_in, answered) as turn:
            environ[TURN] = turn
            return app(environ, start_response)

    return taken


def take_turn() -> None:
    """Before each call that waits, once its client is known: a client that sends its body slowly holds no turn."""
    if request.method == "POST" and request.path.rstrip("/") in WAITING_CALLS:
        request.get_data()
        request.environ[TURN].begin()
