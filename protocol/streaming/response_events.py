"""The stream of /v1/responses: OpenAI's events, numbered by the position in the answer.

A piece of text has the number of the last event before its item's text, plus the characters of the item's text so far.
Numbers therefore rise, though not always by one, and a number stands for the same place however the text was split into
pieces, so that a stream can resume after any number.
"""

from collections.abc import Iterator
from typing import Any

from models.planning.queue_position import QueuePlace
from models.tables import RequestStatus
from protocol.client_errors import ClientError, error_object
from protocol.responses.output_items import (
    CalledFunction,
    CalledTool,
    OutputItem,
    OutputText,
    ReasoningOutput,
    ThoughtText,
)
from protocol.responses.response_objects import Response, response_of
from protocol.streaming.answer_pieces import PieceKind, shown_pieces
from protocol.streaming.answer_progress import AnswerProgress, Magnus, ShownProgress
from protocol.streaming.server_sent_events import KEEP_ALIVE, AnswerStream, event
from request_body import readable_body

CREATED, QUEUED, IN_PROGRESS = range(3)  # the numbers of the events before the first item
NOTHING_YET: dict[str, Any] = {
    "output": [],
    "usage": None,
    "completed_at": None,
    "error": None,
    "incomplete_details": None,
}
LAST_EVENT = {
    RequestStatus.completed: "response.completed",
    RequestStatus.incomplete: "response.incomplete",
    RequestStatus.failed: "response.failed",
    RequestStatus.cancelled: "response.failed",  # OpenAI has no event for it; the response says `cancelled`
}


PROGRESS = "magnus.progress"
DELTA: dict[PieceKind, str] = {"reasoning": "response.reasoning_text", "text": "response.output_text"}


def response_events(
    stream: AnswerStream, response: Response, shown: ShownProgress, starting_after: int | None = None
) -> Iterator[bytes]:
    """Yields the events after `starting_after`; `response` is the object as it was when the stream began."""
    events, progress = _Events(response, -1 if starting_after is None else starting_after), AnswerProgress(shown)
    yield from events.begin()
    try:
        for kind, piece, logprobs in shown_pieces(stream, readable_body(stream.view.request.body), shown.wait_s):
            yield from progress.told(stream.view, events.progress)
            if piece:
                progress.add(piece)
                yield from events.text(kind, piece, logprobs)
            else:  # log probabilities of tokens without text are in the last events
                yield KEEP_ALIVE
    except ClientError as error:
        yield events.failure(error)
        return
    if not stream.left:
        yield from events.end(response_of(stream.view, QueuePlace()))


class _Events:
    """Makes the events of one stream and numbers them; leaves out those that the client has `seen`."""

    def __init__(self, response: Response, seen: int) -> None:
        self._response, self._seen, self._number = response, seen, CREATED
        self._open: PieceKind | None = None  # the kind of the item that is open
        self._thought = ""
        self._items = 0  # items that were added

    def begin(self) -> Iterator[bytes]:
        """Yields the events before an answer's first token."""
        queued = self._as("queued")
        yield from self._event("response.created", CREATED, response=queued)
        if self._response.background:
            yield from self._event("response.queued", QUEUED, response=queued)

    def text(self, kind: PieceKind, piece: str, logprobs: list[Any]) -> Iterator[bytes]:
        """Yields the events of a piece of text, and those of the item that begins with it."""
        if kind != self._open:
            yield from self._close_reasoning(None)
            yield from self._add(kind)
        if kind == "reasoning":
            self._thought += piece
        self._number += len(piece)
        new = piece[max(0, len(piece) - max(0, self._number - self._seen)) :]
        fields: dict[str, Any] = {"delta": new} if kind == "reasoning" else {"delta": new, "logprobs": logprobs}
        yield from self._event(f"{DELTA[kind]}.delta", self._number, **self._place(kind), **fields)

    def end(self, final: Response) -> Iterator[bytes]:
        """Yields the events after the last token."""
        for item in final.output:
            if isinstance(item, CalledFunction | CalledTool):
                yield from self._call(item)
            elif isinstance(item, ReasoningOutput):
                if not self._items:
                    yield from self._add("reasoning")
                yield from self._close_reasoning(item)
            else:
                if self._open != "text":
                    yield from self._add("text")
                yield from self._close("text", item)
        yield from self._next(LAST_EVENT[final.status], response=final)

    def failure(self, error: ClientError) -> bytes:
        """Returns the event of an error that ends the stream."""
        shown = error_object(error)
        fields = {"code": shown.code, "message": shown.message, "param": shown.param}
        return event({"type": "error", **fields, "sequence_number": self._place_now}, "error")

    def progress(self, magnus: Magnus) -> bytes:
        """Returns the event that tells how long the answer still takes."""
        fields = {"type": PROGRESS, "sequence_number": self._place_now, "magnus": magnus}
        return event(fields, PROGRESS)

    @property
    def _place_now(self) -> int:
        """The number of the last event, behind which a client that resumes goes on."""
        return max(self._number, self._seen, 0)

    def _add(self, kind: PieceKind) -> Iterator[bytes]:
        yield from self._start()
        item: dict[str, Any] = {"id": self._id(kind), "type": "message", "role": "assistant", "content": []}
        part: OutputText | ThoughtText = OutputText(text="")
        if kind == "reasoning":
            item, part = {"id": self._id(kind), "type": "reasoning", "summary": [], "content": []}, ThoughtText(text="")
        self._open = kind
        self._items += 1
        added = {"output_index": self._items - 1, "item": item | {"status": "in_progress"}}
        yield from self._next("response.output_item.added", **added)
        yield from self._next("response.content_part.added", **self._place(kind), part=part.model_dump())

    def _start(self) -> Iterator[bytes]:
        if not self._items:
            self._number = IN_PROGRESS
            yield from self._event("response.in_progress", IN_PROGRESS, response=self._as("in_progress"))

    def _close_reasoning(self, item: ReasoningOutput | None) -> Iterator[bytes]:
        if self._open == "reasoning":
            yield from self._close("reasoning", item or ReasoningOutput.of(self._id("reasoning"), self._thought))

    def _close(self, kind: PieceKind, item: OutputItem) -> Iterator[bytes]:
        shown, place = item.model_dump(), self._place(kind)
        (part,) = shown["content"]
        self._open = None
        whole = {name: value for name, value in part.items() if name in ("text", "logprobs")}
        yield from self._next(f"{DELTA[kind]}.done", **place, **whole)
        yield from self._next("response.content_part.done", **place, part=part)
        yield from self._next("response.output_item.done", output_index=self._items - 1, item=shown)

    def _call(self, call: CalledFunction | CalledTool) -> Iterator[bytes]:
        yield from self._start()
        index, shown = self._items, call.model_dump()
        self._items += 1
        kind, text = "function_call_arguments", "arguments"
        if isinstance(call, CalledTool):
            kind = "custom_tool_call_input"
            text = "input"
        begun, where = shown | {"status": "in_progress", text: ""}, {"item_id": call.id, "output_index": index}
        done = {text: shown[text]} | ({"name": call.name} if isinstance(call, CalledFunction) else {})
        yield from self._next("response.output_item.added", output_index=index, item=begun)
        yield from self._next(f"response.{kind}.delta", **where, delta=shown[text])
        yield from self._next(f"response.{kind}.done", **where, **done)
        yield from self._next("response.output_item.done", output_index=index, item=shown)

    def _as(self, status: str) -> dict[str, Any]:
        update = {"status": RequestStatus(status), **NOTHING_YET}
        return self._response.model_copy(update=update).model_dump(mode="json")

    def _id(self, kind: PieceKind) -> str:
        return self._response.id.replace("resp_", "rs_" if kind == "reasoning" else "msg_", 1)

    def _place(self, kind: PieceKind) -> dict[str, Any]:
        return {"item_id": self._id(kind), "output_index": self._items - 1, "content_index": 0}

    def _next(self, kind: str, **fields: Any) -> Iterator[bytes]:
        self._number += 1
        yield from self._event(kind, self._number, **fields)

    def _event(self, kind: str, number: int, **fields: Any) -> Iterator[bytes]:
        if number > self._seen:
            yield event({"type": kind, "sequence_number": number, **fields}, kind)
