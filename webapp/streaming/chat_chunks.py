"""The streams of /v1/chat/completions and /v1/completions: chunks, then [DONE]."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from models.queue_position import QueuePlace
from webapp.chat_answers import finish_reason_of, usage_of
from webapp.client_errors import ClientError, error_object
from webapp.response_objects import magnus_of
from webapp.streaming.answer_stream import AnswerStream
from webapp.streaming.event_stream import DONE, KEEP_ALIVE, event
from webapp.submission import require_answer

ChunkKind = Literal["chat.completion.chunk", "text_completion"]


def chunks(stream: AnswerStream, kind: ChunkKind, includes_usage: bool) -> Iterator[bytes]:
    """The events of either call; an error ends them with an `error` object in place of a chunk."""
    chat = kind == "chat.completion.chunk"
    request = stream.view.request
    head: dict[str, Any] = {
        "id": request.id.replace("resp_", "chatcmpl-" if chat else "cmpl-", 1),
        "object": kind,
        "created": int(request.arrived_at.timestamp()),
        "model": request.model,
    }
    no_usage = {"usage": None} if includes_usage else {}

    def chunk(content: Mapping[str, Any], finish_reason: str | None = None, **more: Any) -> bytes:
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": finish_reason}
        return event({**head, "choices": [choice], **no_usage, **more})

    try:
        if chat:
            yield chunk({"delta": {"role": "assistant", "content": ""}})
        for piece in stream.pieces():
            yield chunk({"delta": {"content": piece}} if chat else {"text": piece}) if piece else KEEP_ALIVE
        if stream.left:
            return
        require_answer(stream.view)
    except ClientError as error:
        yield event({"error": error_object(error).model_dump()})
    else:
        magnus = magnus_of(stream.view, QueuePlace()).model_dump()
        yield chunk({"delta": {}} if chat else {"text": ""}, finish_reason_of(stream.view), magnus=magnus)
        if includes_usage:
            yield event({**head, "choices": [], "usage": usage_of(stream.view).model_dump()})
    yield DONE
