"""The stream of /v1/messages: Anthropic's events, a content block for thinking, for the text and for each call."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from protocol.client_errors import CLIENT_ERRORS, ClientError, error_object
from protocol.messages.message_objects import MessageError, message_of
from protocol.requests.several_answers import require_answer
from protocol.responses.output_items import answer_parts
from protocol.streaming.answer_pieces import PieceKind, shown_pieces
from protocol.streaming.answer_progress import AnswerProgress, ShownProgress
from protocol.streaming.server_sent_events import AnswerStream, comment, event
from request_body import read_body

PING = event({"type": "ping"}, "ping")
FIELD: dict[PieceKind, str] = {"reasoning": "thinking", "text": "text"}
BEGUN: dict[str, dict[str, Any]] = {
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
    "text": {"type": "text", "text": ""},
}


def message_events(stream: AnswerStream, shown: ShownProgress) -> Iterator[bytes]:
    """Yields the events of an answer; an error is the last one, in place of the message's end.

    Progress is always a comment, because Anthropic's clients know the events of a message.
    """
    begun = message_of(stream.view).model_copy(update={"content": [], "stop_reason": None, "stop_sequence": None})
    yield _event("message_start", message=begun.model_dump())
    yield PING
    try:
        yield from _blocks(stream, shown)
    except ClientError as error:
        told = MessageError.of(CLIENT_ERRORS[type(error)][0], error_object(error))
        yield event(told.model_dump(exclude_none=True), "error")
        return
    if stream.left:
        return
    message = message_of(stream.view)
    delta = {"stop_reason": message.stop_reason, "stop_sequence": message.stop_sequence}
    ended = {"usage": message.usage.model_dump(), "magnus": message.magnus.model_dump()}
    yield _event("message_delta", delta=delta, **ended)
    yield _event("message_stop")


def _blocks(stream: AnswerStream, shown: ShownProgress) -> Iterator[bytes]:
    index, begun, progress = -1, "", AnswerProgress(shown)
    for kind, piece, _ in shown_pieces(stream, read_body(stream.view.request.body), shown.wait_s):
        yield from progress.told(stream.view, partial(comment, "progress"))
        if not piece:
            yield PING
            continue
        progress.add(piece)
        field = FIELD[kind]
        if field != begun:
            if begun:
                yield _event("content_block_stop", index=index)
            index, begun = index + 1, field
            yield _event("content_block_start", index=index, content_block=BEGUN[field])
        yield _event("content_block_delta", index=index, delta={"type": f"{field}_delta", field: piece})
    if stream.left:
        return
    if begun:
        yield _event("content_block_stop", index=index)
    require_answer(stream.view)
    calls = answer_parts(stream.view).calls
    if not begun and not calls:
        yield _event("content_block_start", index=0, content_block=BEGUN["text"])
        yield _event("content_block_stop", index=0)
    for number, (call_id, call) in enumerate(calls, index + 1):
        block = {"type": "tool_use", "id": call_id, "name": call.name, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": call.arguments}
        yield _event("content_block_start", index=number, content_block=block)
        yield _event("content_block_delta", index=number, delta=delta)
        yield _event("content_block_stop", index=number)


def _event(kind: str, **fields: Any) -> bytes:
    return event({"type": kind, **fields}, kind)
