"""The streams of /v1/chat/completions and /v1/completions: chunks with their answer's `index`, then [DONE]."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from models.planning.queue_position import QueuePlace
from protocol.chat.chat_answers import completion_logprobs, finish_reason_of, usage_of
from protocol.chat.chat_objects import CompletionUsage, answered_call
from protocol.client_errors import ClientError, error_object
from protocol.requests.several_answers import require_answer
from protocol.requests.submission import tier_of_answers
from protocol.responses.output_items import answer_parts
from protocol.responses.response_objects import magnus_of
from protocol.streaming.answer_pieces import shown_pieces
from protocol.streaming.answer_progress import AnswerProgress, ShownProgress
from protocol.streaming.server_sent_events import DONE, KEEP_ALIVE, AnswerStream, event, in_turns
from request_body import PLAIN, read_body

NAMES = {"text": "content", "reasoning": "reasoning_content"}  # the field of a delta for each kind of piece
ChunkKind = Literal["chat.completion.chunk", "text_completion"]


@dataclass(frozen=True, slots=True)
class ShownUsage:
    """How chunks show numbers of tokens; `count` counts a text's tokens."""

    answers_a_prompt: int
    at_end: bool
    in_chunks: bool
    count: Callable[[str], int]


def chunks(
    streams: Sequence[AnswerStream], kind: ChunkKind, shown: ShownUsage, progress: ShownProgress
) -> Iterator[bytes]:
    """Yields the events of either call; an error ends them with an `error` object in place of a chunk."""
    request = streams[0].view.request
    head: dict[str, Any] = {
        "id": request.id.replace("resp_", "chatcmpl-" if kind == "chat.completion.chunk" else "cmpl-", 1),
        "object": kind,
        "created": int(request.arrived_at.timestamp()),
        "model": request.model,
        "service_tier": tier_of_answers([stream.view for stream in streams]),
    }
    common = head | ({"usage": None} if shown.at_end or shown.in_chunks else {})
    try:
        each = [
            _chunks_of_one(stream, index, common, shown, AnswerProgress(progress))
            for index, stream in enumerate(streams)
        ]
        yield from in_turns(streams, each, progress.wait_s)
        if streams[0].left:
            return
        if shown.at_end:
            usage = usage_of([stream.view for stream in streams], answers_a_prompt=shown.answers_a_prompt)
            yield event({**head, "choices": [], "usage": usage.model_dump()})
    except ClientError as error:
        yield event({"error": error_object(error).model_dump()})
    yield DONE


def _chunks_of_one(
    stream: AnswerStream, index: int, common: Mapping[str, Any], shown: ShownUsage, progress: AnswerProgress
) -> Iterator[bytes]:
    chat, request = common["object"] == "chat.completion.chunk", stream.view.request
    so_far: dict[str, int] = {"text": 0, "reasoning": 0}  # tokens sent, by kind of piece, if they are shown

    def chunk(
        content: Mapping[str, Any], finish_reason: str | None = None, logprobs: object = None, **more: Any
    ) -> bytes:
        choice = {"index": index, **content, "logprobs": logprobs, "finish_reason": finish_reason}
        if shown.in_chunks:
            thought = None if body.answer_form == PLAIN else so_far["reasoning"]
            usage = CompletionUsage.of(request.prompt_tokens, sum(so_far.values()), thought)
            if finish_reason and stream.view.request.output_tokens:
                usage = usage_of([stream.view], answers_a_prompt=1)
            more["usage"] = usage.model_dump()
        return event({**common, "choices": [choice], **more})

    body = read_body(request.body)
    if chat:
        yield chunk({"delta": {"role": "assistant", "content": ""}})
    elif body.echo and body.top_logprobs is None:
        yield chunk({"text": request.input})
    characters = 0
    for kind, piece, entries in shown_pieces(stream, body, wait_s=0):
        yield from progress.told(stream.view, lambda magnus: event({**common, "choices": [], "magnus": magnus}), index)
        if not piece and not entries:
            yield KEEP_ALIVE
            continue
        progress.add(piece)
        if shown.in_chunks:
            so_far[kind] += shown.count(piece)
        content = {"delta": {NAMES[kind]: piece}} if chat else {"text": piece}
        logprobs: object = {"content": entries, "refusal": None}
        if not chat:
            logprobs = completion_logprobs(entries, begins_a_prompt=body.echo and not characters, offset=characters)
        characters += len(piece)
        yield chunk(content, logprobs=logprobs if entries else None)
    if stream.left:
        return
    require_answer(stream.view)
    parts = answer_parts(stream.view)
    for number, (call_id, call) in enumerate(parts.calls):
        called = answered_call(call_id, call).model_dump()
        yield chunk({"delta": {"tool_calls": [{"index": number, **called}]}})
    magnus = magnus_of(stream.view, QueuePlace(), body).model_dump()
    finish_reason = "tool_calls" if parts.calls and not parts.cut else finish_reason_of(stream.view)
    yield chunk({"delta": {}} if chat else {"text": ""}, finish_reason, magnus=magnus)
