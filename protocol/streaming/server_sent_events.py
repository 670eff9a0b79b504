"""Server-sent events, and the events of several streams of one call in turn."""

from collections.abc import Iterator, Mapping, Sequence
from threading import Event
from typing import Any, Protocol

from models.client_requests import RequestView
from protocol.json_bytes import one_line_json

# Seconds without a new token after which a stream sends KEEP_ALIVE: below the 60 s after which load balancers close
# silent connections. Not tuned otherwise.
KEEP_ALIVE_S = 15.0
# Clients ignore an empty line between events. They ignore a comment, too, but clients that strip each piece that they
# read take the next event for a part of the comment (`vllm bench serve` does).
KEEP_ALIVE = b"\n"
DONE = b"data: [DONE]\n\n"


class AnswerStream(Protocol):
    """An answer that comes piece by piece."""

    view: RequestView  # the request as it was when the stream began, then as it ended
    changed: Event  # set when `pieces` can go on

    def pieces(self, wait_s: float = KEEP_ALIVE_S) -> Iterator[str]:
        """Yields the answer's pieces until its end, and an empty piece whenever none has come for `wait_s`.

        Raises a ClientError if the answer cannot go on to its end.
        """

    @property
    def left(self) -> bool:
        """Returns whether the client has disconnected."""


def in_turns(
    streams: Sequence[AnswerStream], events: Sequence[Iterator[bytes]], most_silent_s: float = KEEP_ALIVE_S
) -> Iterator[bytes]:
    """Yields the events of several streams of one call as they come; each iterator yields KEEP_ALIVE if it has none.

    After `most_silent_s` without any event, it yields KEEP_ALIVE.
    """
    running, changed = list(events), streams[0].changed
    while True:
        changed.clear()  # before the streams are looked at, so that no change is missed
        idle = True
        for one in list(running):
            sent = next(one, None)
            if sent is None:
                running.remove(one)
            elif sent is not KEEP_ALIVE:
                yield sent
            idle = idle and sent is KEEP_ALIVE
        if not running:
            return
        if idle and not changed.wait(most_silent_s):
            yield KEEP_ALIVE


def event(data: Mapping[str, Any], name: str | None = None) -> bytes:
    """Encodes one server-sent event."""
    named = b"" if name is None else b"event: " + name.encode() + b"\n"
    return named + b"data: " + one_line_json(data) + b"\n\n"


def comment(name: str, data: Mapping[str, Any]) -> bytes:
    """Encodes one comment, which parsers of server-sent events skip."""
    return b": " + name.encode() + b" " + one_line_json(data) + b"\n\n"
