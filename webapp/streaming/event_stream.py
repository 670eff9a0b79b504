"""Server-sent events as bytes, and the HTTP answer that carries them."""

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

from flask import Response
from pydantic_core import to_json

KEEP_ALIVE = b": still there\n\n"  # a comment, which clients skip
DONE = b"data: [DONE]\n\n"


def event(data: Mapping[str, Any], name: str | None = None) -> bytes:
    """One event."""
    named = b"" if name is None else b"event: " + name.encode() + b"\n"
    return named + b"data: " + to_json(data) + b"\n\n"


def event_stream(events: Iterable[bytes], close: Callable[[], None]) -> Response:
    """The answer that sends these events as they come; `close` is called when it ends or its client is gone.

    Its headers leave at once: servers send them with the first part of the body.
    """
    answer = Response(chain([KEEP_ALIVE], events), mimetype="text/event-stream", headers={"X-Accel-Buffering": "no"})
    answer.call_on_close(close)
    return answer
