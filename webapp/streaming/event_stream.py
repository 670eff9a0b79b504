"""Server-sent events as bytes, and the HTTP answer that carries them."""

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

from flask import Response
from pydantic_core import to_json

# An empty line between events means nothing. A comment means nothing either, but clients that strip what a read gave
# them take the next event for a part of it (`vllm bench serve` does).
KEEP_ALIVE = b"\n"
DONE = b"data: [DONE]\n\n"


def event(data: Mapping[str, Any], name: str | None = None) -> bytes:
    """One event."""
    named = b"" if name is None else b"event: " + name.encode() + b"\n"
    return named + b"data: " + to_json(data) + b"\n\n"


def event_stream(events: Iterable[bytes], close: Callable[[], None]) -> Response:
    """The answer that sends these events as they come; `close` is called when it ends or its client is gone.

    Its headers leave at once: servers send them with the first part of the body, also if that is empty.
    """
    answer = Response(chain([b""], events), mimetype="text/event-stream", headers={"X-Accel-Buffering": "no"})
    answer.call_on_close(close)
    return answer
