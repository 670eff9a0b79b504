"""The stream of /v1/responses: OpenAI's events, numbered by the position in the answer.

The number of a piece of text is that of the last event before the text plus the characters sent so far. Numbers
therefore rise, though not always by one, and a number stands for the same place however the text was split into pieces,
so that a stream can resume after it.
"""

from collections.abc import Iterator
from typing import Any

from models.planning.queue_position import QueuePlace
from models.tables import RequestStatus
from request_body import readable_body
from webapp.client_errors import ClientError, error_object
from webapp.responses.response_objects import CalledFunction, OutputMessage, OutputText, Response, response_of
from webapp.streaming.answer_pieces import shown_pieces
from webapp.streaming.answer_stream import KEEP_ALIVE, AnswerStream, event

CREATED, QUEUED, IN_PROGRESS, ITEM_ADDED, PART_ADDED = range(5)  # the numbers of the events before the text
EVENTS_OF_CALL = 4
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


def characters_before(starting_after: int | None) -> int:
    """Returns the characters of the answer that a client has received with the event of this number."""
    return 0 if starting_after is None else max(0, starting_after - PART_ADDED)


def response_events(stream: AnswerStream, response: Response, starting_after: int | None = None) -> Iterator[bytes]:
    """Yields the events after `starting_after`; `response` is the object as it was when the stream began."""
    seen = -1 if starting_after is None else starting_after
    item_id = response.id.replace("resp_", "msg_", 1)
    place = {"item_id": item_id, "output_index": 0, "content_index": 0}
    number = CREATED

    def numbered(kind: str, at: int, **fields: Any) -> Iterator[bytes]:
        nonlocal number
        number = max(number, at)
        if at > seen:
            yield event({"type": kind, "sequence_number": at, **fields}, kind)

    def starting() -> Iterator[bytes]:
        started = response.model_copy(update={"status": RequestStatus.in_progress, **NOTHING_YET})
        yield from numbered("response.in_progress", IN_PROGRESS, response=started.model_dump(mode="json"))

    def opening() -> Iterator[bytes]:
        yield from starting()
        item = {"id": item_id, "type": "message", "status": "in_progress", "role": "assistant", "content": []}
        yield from numbered("response.output_item.added", ITEM_ADDED, output_index=0, item=item)
        yield from numbered("response.content_part.added", PART_ADDED, **place, part=OutputText(text="").model_dump())

    queued = response.model_copy(update={"status": RequestStatus.queued, **NOTHING_YET}).model_dump(mode="json")
    yield from numbered("response.created", CREATED, response=queued)
    if response.background:
        yield from numbered("response.queued", QUEUED, response=queued)
    position, opened = characters_before(starting_after), False
    try:
        for piece, logprobs in shown_pieces(stream, readable_body(stream.view.request.body), waits=True):
            if not piece:  # log probabilities of tokens without text are in the last events
                yield KEEP_ALIVE
                continue
            if not opened:
                yield from opening()
                opened = True
            position += len(piece)
            delta = {"delta": piece, "logprobs": logprobs}
            yield from numbered("response.output_text.delta", PART_ADDED + position, **place, **delta)
    except ClientError as error:
        failed = error_object(error)
        yield event(
            {
                "type": "error",
                "code": failed.code,
                "message": failed.message,
                "param": failed.param,
                "sequence_number": max(number, seen, 0),
            },
            "error",
        )
        return
    if stream.left:
        return
    final = response_of(stream.view, QueuePlace())
    end = PART_ADDED + position
    messages = [item for item in final.output if isinstance(item, OutputMessage)]
    if final.output and not messages:
        yield from starting()
    for item in messages:
        if not opened:
            yield from opening()
        (part,) = item.content
        end, shown = PART_ADDED + len(part.text), part.model_dump()
        yield from numbered("response.output_text.done", end + 1, **place, text=part.text, logprobs=shown["logprobs"])
        yield from numbered("response.content_part.done", end + 2, **place, part=shown)
        yield from numbered("response.output_item.done", end + 3, output_index=0, item=item.model_dump())
    for call in final.output[len(messages) :]:
        if isinstance(call, CalledFunction):
            output_index = final.output.index(call)
            where = {"item_id": call.id, "output_index": output_index}
            begun = call.model_dump() | {"status": "in_progress", "arguments": ""}
            done = {"name": call.name, "arguments": call.arguments}
            end += EVENTS_OF_CALL
            yield from numbered("response.output_item.added", end, output_index=output_index, item=begun)
            yield from numbered("response.function_call_arguments.delta", end + 1, **where, delta=call.arguments)
            yield from numbered("response.function_call_arguments.done", end + 2, **where, **done)
            yield from numbered("response.output_item.done", end + 3, output_index=output_index, item=call.model_dump())
    yield from numbered(LAST_EVENT[final.status], end + 4, response=final.model_dump(mode="json"))
