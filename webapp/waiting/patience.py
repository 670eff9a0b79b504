"""How long a client waits, whether it is still connected, and the turns of calls on the process's CPU."""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Semaphore
from typing import Protocol, Self, cast
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from flask import has_request_context, request
from werkzeug import Request

TURN = "magnus.turn"  # in the WSGI environment
# each waits for its answer, or streams it
WAITING_CALLS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/rerank", "/v1/score")
# Most calls that are read and stored at once, and most that are answered at once. With one, the process is idle while
# Postgres works for that call; each further one is another call that a submission waits behind.
AT_ONCE = 4

CONNECTION = "magnus.connection"  # in the WSGI environment of a server that reports when clients disconnect
# the preference `wait` of RFC 7240, in whole seconds
WAIT = re.compile(r'(?:^|,)\s*wait\s*=\s*"?(\d{1,9})"?\s*(?=[;,]|$)', re.IGNORECASE)


class CpuTurn:
    """One call's turn on the CPU; while the call waits for its answer, other calls have theirs."""

    def __init__(self, taken_in: Semaphore, answered: Semaphore) -> None:
        self._taken_in, self._answered = taken_in, answered
        self._held: Semaphore | None = None

    def begin(self) -> None:
        """Waits for the call's turn to be read and stored."""
        self._taken_in.acquire()
        self._held = self._taken_in

    @property
    def begun(self) -> bool:
        """Whether the call is being read and stored."""
        return self._held is self._taken_in

    @contextmanager
    def given_up(self) -> Iterator[None]:
        """Gives the turn up within the `with` block, then waits for the turn to send the answer."""
        self.end()
        try:
            yield
        finally:
            self._answered.acquire()
            self._held = self._answered

    def end(self) -> None:
        """Ends the turn, so that the next call gets it."""
        if self._held is not None:
            self._held.release()
            self._held = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


@contextmanager
def others_turn() -> Iterator[None]:
    """Lets other calls have this call's turn within the `with` block, in which it waits for another process."""
    turn: CpuTurn | None = request.environ.get(TURN) if has_request_context() else None
    if turn is None or not turn.begun:
        yield
        return
    turn.end()
    try:
        yield
    finally:
        turn.begin()


def in_turns(app: WSGIApplication, at_once: int = AT_ONCE) -> WSGIApplication:
    """Returns the app with a CpuTurn for each call, from `take_turn` to the end or a stream's first byte."""
    taken_in, answered = Semaphore(at_once), Semaphore(at_once)

    def taken(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        with CpuTurn(taken_in, answered) as turn:
            environ[TURN] = turn
            return app(environ, start_response)

    return taken


def take_turn() -> None:
    """Reads the body of a call that waits, then begins its turn, so that a client that sends slowly holds no turn."""
    if request.method == "POST" and request.path.rstrip("/") in WAITING_CALLS:
        request.get_data()
        request.environ[TURN].begin()


class Connection(Protocol):
    """The client's connection."""

    def on_close(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls back, in another thread, once the client has closed; returns a function that ends the watch."""


@dataclass(frozen=True, slots=True)
class Patience:
    """The seconds that a call waits, its turn of the CPU, and the connection if the server reports that it closes."""

    wait_s: float
    turn: CpuTurn
    connection: Connection | None = None


def preferred_wait_s(request: Request) -> int | None:
    """Returns the seconds of the header `Prefer: wait=N`, or None if the client has no preference."""
    found = WAIT.search(request.headers.get("Prefer", ""))
    return int(found[1]) if found else None


def patience_of(request: Request, longest_s: float) -> Patience:
    """Returns the seconds that the client prefers to wait, at most and by default `longest_s`, with its turn."""
    preferred_s = preferred_wait_s(request)
    wait_s = longest_s if preferred_s is None else min(preferred_s, longest_s)
    return Patience(wait_s, request.environ[TURN], connection_of(request))


def connection_of(request: Request) -> Connection | None:
    """Returns the connection on which a request came; None under a server that does not expose it."""
    return cast(Connection | None, request.environ.get(CONNECTION))
