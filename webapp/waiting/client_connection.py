"""How long a client waits: what its headers ask for, and whether it is still there."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

from werkzeug import Request

from webapp.waiting.cpu_turns import TURN, CpuTurn

CONNECTION = "magnus.connection"  # in the WSGI environment of a server that tells when clients leave
WAIT = re.compile(r'(?:^|,)\s*wait\s*=\s*"?(\d{1,9})"?\s*(?=[;,]|$)', re.IGNORECASE)  # of RFC 7240, whole seconds


class Connection(Protocol):
    """The client's connection."""

    def on_close(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back, in another thread, once the client has closed; returns what ends the watch."""
        ...


@dataclass(frozen=True, slots=True)
class Patience:
    """How many seconds a call waits, its turn, and the client's connection where the server tells when it closes."""

    wait_s: float
    turn: CpuTurn
    connection: Connection | None = None


def preferred_wait_s(request: Request) -> int | None:
    """The seconds of the header `Prefer: wait=N`; None if the client has no preference."""
    found = WAIT.search(request.headers.get("Prefer", ""))
    return int(found[1]) if found else None


def patience_of(request: Request, longest_s: float) -> Patience:
    """As long as the client prefers, at most and by default `longest_s`."""
    preferred_s = preferred_wait_s(request)
    wait_s = longest_s if preferred_s is None else min(preferred_s, longest_s)
    return Patience(wait_s, request.environ[TURN], connection_of(request))


def connection_of(request: Request) -> Connection | None:
    """The connection that a request came on; None under a server that does not show it."""
    return cast(Connection | None, request.environ.get(CONNECTION))
