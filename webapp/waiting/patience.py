"""How long a client waits, whether it is still connected, and the turns of calls on the process's CPU."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from threading import Semaphore
from typing import Protocol, cast
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from flask import request
from werkzeug import Request

from processes.cpu_turns import CpuTurn, current_turn

# the addresses of calls that wait for their answer, or stream it
WAITING_CALLS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/messages",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/score",
)
# Most calls that are read and stored at once, and most that are answered at once. With 1, the process is idle while
# Postgres works for the one call; a higher number makes a submission wait behind more calls.
AT_ONCE = 4

CONNECTION = "magnus.connection"  # its key in the WSGI environment of a server that reports when clients disconnect
# the preference `wait` of RFC 7240, in whole seconds
WAIT = re.compile(r'(?:^|,)\s*wait\s*=\s*"?(\d{1,9})"?\s*(?=[;,]|$)', re.IGNORECASE)
ASYNC = re.compile(r"(?:^|,)\s*respond-async\s*(?=[;,]|$)", re.IGNORECASE)


def in_turns(app: WSGIApplication, at_once: int = AT_ONCE) -> WSGIApplication:
    """Returns the app with a CpuTurn for each call, from `take_turn` to the end or a stream's first byte."""
    taken_in, answered = Semaphore(at_once), Semaphore(at_once)

    def taken(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        with CpuTurn(taken_in, answered):
            return app(environ, start_response)

    return taken


def take_turn() -> None:
    """Reads the body of a call that waits, then begins its turn, so that a client that sends slowly holds no turn."""
    if request.method == "POST" and request.path.rstrip("/") in WAITING_CALLS:
        request.get_data()
        current_turn().begin()


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


def prefers_async(request: Request) -> bool:
    """Returns whether the header `Prefer: respond-async` asks for the answer to be fetched later."""
    return ASYNC.search(request.headers.get("Prefer", "")) is not None


def patience_of(request: Request, longest_s: float) -> Patience:
    """Returns the seconds that the client prefers to wait, at most and by default `longest_s`, with its turn."""
    preferred_s = preferred_wait_s(request)
    wait_s = longest_s if preferred_s is None else min(preferred_s, longest_s)
    return Patience(wait_s, current_turn(), connection_of(request))


def connection_of(request: Request) -> Connection | None:
    """Returns the connection on which a request came; None under a server that does not expose it."""
    return cast(Connection | None, request.environ.get(CONNECTION))
