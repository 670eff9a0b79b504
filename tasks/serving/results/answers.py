"""Makes the stored form of an ended row: status, text, tokens, and log probabilities in OpenAI's form. Pure."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from inference.answer_parts import read_answer
from inference.answer_text import cut_at_stop, first_stop, storable
from inference.engine_requests import FinishedRow, TokenLogprob
from inference.prompts.request_tokens import RequestTokens
from models.leasing.batch_results import Answer
from models.tables import RequestStatus
from request_body import PLAIN
from tasks.serving.results.engine_events import RowEnded, RowFailed

Decode = Callable[[Sequence[int]], str]
TokenBytes = Callable[[int], bytes]
Json = dict[str, Any]

STATUS_OF_REASON = {
    "eos": RequestStatus.completed,
    "landed": RequestStatus.completed,
    "stop": RequestStatus.completed,
    "limit": RequestStatus.incomplete,
    "loop": RequestStatus.incomplete,
    "removed": RequestStatus.cancelled,
}


def stored_answer(event: RowEnded | RowFailed, now: float, tokens: RequestTokens) -> Answer:
    """Returns what the database stores of a request that ended; `now` is monotonic seconds."""
    if isinstance(event, RowFailed):
        error = {"code": event.code, "message": storable(event.message)}
        return Answer(event.lease, event.request_id, RequestStatus.failed, None, 0, None, now - event.at, error)
    ended = event.ended
    # a server's detokenizer also writes the end-of-sequence token
    ids = ended.generated_ids[:-1] if ended.reason == "eos" else ended.generated_ids
    decode = partial(tokens.decode, continues=event.continues)
    answer = decode(ids) if ended.text is None else ended.text
    text = storable(cut_at_stop(answer, event.stop))
    logprobs = None
    if event.with_logprobs:
        known = (*ended.prompt_logprobs, *logprobs_of_text(ended, text, decode))
        logprobs = shown(known, tokens.token_bytes)
    return Answer(
        lease=event.lease,
        request_id=ended.id,
        status=STATUS_OF_REASON[ended.reason],
        text=text,
        tokens=ended.tokens,
        reason=ended.reason,
        ago_s=now - event.at,
        logprobs=logprobs,
        gpu_s=event.gpu_s,
        cached_tokens=ended.cached_tokens,
        first_token_ago_s=None if event.first_token_at is None else now - event.first_token_at,
        stop_string=first_stop(answer, event.stop) if ended.reason == "stop" else None,
        reasoning_tokens=None if event.answer_form == PLAIN else reasoning_tokens(event, answer, tokens),
    )


def reasoning_tokens(event: RowEnded, answer: str, tokens: RequestTokens) -> int:
    """Returns how many tokens of this answer are thinking, tags included; counts by the tokenizer without token ids."""
    read, ids = read_answer(answer, event.answer_form, {}), event.ended.generated_ids
    if event.ended.text is not None:
        return min(tokens.count(answer[: read.thinking_length]), event.ended.tokens)
    decode = partial(tokens.decode, continues=event.continues)
    return bisect_left(range(len(ids)), read.thinking_length, key=lambda count: len(decode(ids[:count])))


def packed(logprobs: Sequence[TokenLogprob]) -> list[Any]:
    """Returns the log probabilities in the form in which the row of a requeued request stores them."""
    return [[one.id, one.logprob, one.likeliest] for one in logprobs]


def unpacked(stored: Sequence[Any]) -> tuple[TokenLogprob, ...]:
    """Returns the log probabilities from the form of `packed`; raises ValueError or TypeError for other forms."""
    return tuple(
        TokenLogprob(int(token), float(logprob), tuple((int(other), float(value)) for other, value in likeliest))
        for token, logprob, likeliest in stored
    )


def shown(logprobs: Sequence[TokenLogprob], token_bytes: TokenBytes) -> list[Json]:
    """Returns the log probabilities as the API shows them."""
    return [
        _entry(one.id, one.logprob, token_bytes)
        | {"top_logprobs": [_entry(token, value, token_bytes) for token, value in one.likeliest]}
        for one in logprobs
    ]


def logprobs_of_text(ended: FinishedRow, text: str, decode: Decode) -> tuple[TokenLogprob, ...]:
    """Returns the log probabilities of the text's tokens, without end of sequence and what a stop string cut off.

    A landed answer ends with or without the end of sequence.
    """
    kept = len(ended.generated_ids)
    if ended.reason == "eos":
        kept -= 1
    while ended.reason in ("stop", "landed") and kept and decode(ended.generated_ids[: kept - 1]).startswith(text):
        kept -= 1
    return ended.logprobs[:kept]


def _entry(token: int, logprob: float, token_bytes: TokenBytes) -> Json:
    raw = token_bytes(token)
    return {"token": storable(raw.decode("utf-8", "replace")), "logprob": logprob, "bytes": list(raw)}
