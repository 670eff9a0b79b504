"""Cuts a streamed answer into the pieces that a client sees: without the text of calls, with log probabilities."""

import codecs
from collections.abc import Iterator, Sequence
from typing import Any

from inference.tool_calls import may_begin_calls
from request_body import RequestBody
from webapp.streaming.answer_stream import AnswerStream
from webapp.tools import answer_parts

Entries = list[dict[str, Any]]  # stored log probabilities


def shown_pieces(stream: AnswerStream, body: RequestBody, *, waits: bool) -> Iterator[tuple[str, Entries]]:
    """Yields what `stream.pieces` yields, without the text of calls, each piece with its tokens' log probabilities.

    They are stored with the answer, so the text of a request that asks for them comes at its end.
    """
    if body.top_logprobs is None:
        pieces = text_before_calls(stream, waits=waits) if body.offered_tools else stream.pieces(waits=waits)
        yield from ((piece, []) for piece in pieces)
        return
    for piece in stream.pieces(waits=waits):
        if not piece:
            yield piece, []
    if not stream.left and stream.view.request.output_text is not None:
        prompt = stream.view.request.input if body.echo else ""
        yield from by_token(prompt + answer_parts(stream.view).text, stream.view.logprobs or [])


def by_token(text: str, entries: Sequence[dict[str, Any]]) -> Iterator[tuple[str, Entries]]:
    """Yields a text by its tokens, those that share a character together; tokens without text come last."""
    decoder, shown, ended, own = codecs.getincrementaldecoder("utf-8")("replace"), 0, 0, []
    for entry in entries:
        own.append(entry)
        ended += len(decoder.decode(bytes(entry["bytes"] or b"")))
        if shown < min(ended, len(text)):
            yield text[shown:ended], own
            shown, own = ended, []
    if own or shown < len(text):
        yield text[shown:], own


def text_before_calls(stream: AnswerStream, *, waits: bool) -> Iterator[str]:
    """Yields pieces of text, and an empty one after a pause; holds back text that may be a tool call."""
    sent = stream.sent_characters
    text = "." * sent  # the client has read this part, so it holds no call
    for piece in stream.pieces(waits=waits):
        text += piece
        upto = may_begin_calls(text)
        ready = text[sent:upto]
        sent += len(ready)
        if ready or not piece:
            yield ready
    rest = "" if stream.left else answer_parts(stream.view).text[sent:]
    if rest:
        yield rest
