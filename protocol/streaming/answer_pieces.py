"""Cuts a streamed answer into the pieces that a client sees: thinking apart from text, no calls, log probabilities."""

import codecs
from collections.abc import Iterator, Sequence
from time import monotonic
from typing import Any, Literal

from pydantic_core import from_json

from inference.growing_answer import GrowingAnswer
from inference.tool_calls import text_parameters
from protocol.responses.output_items import AnswerParts, answer_parts
from protocol.streaming.server_sent_events import AnswerStream
from request_body import PLAIN, RequestBody

Entries = list[dict[str, Any]]  # stored log probabilities
PieceKind = Literal["reasoning", "text"]
Piece = tuple[PieceKind, str, Entries]


def shown_pieces(stream: AnswerStream, body: RequestBody, wait_s: float) -> Iterator[Piece]:
    """Yields what `stream.pieces` yields, each piece with its kind and its tokens' log probabilities.

    Text that may become a call is held back. Log probabilities are stored with the answer, so the text of a request
    that asks for them comes at its end. Whenever nothing was shown for `wait_s`, an empty piece comes.
    """
    shown, shown_at = _ShownParts(body), monotonic()
    for piece in stream.pieces(wait_s):
        new = [*shown.add(piece)] if piece and body.top_logprobs is None else []
        if new or not piece or monotonic() >= shown_at + wait_s:
            shown_at = monotonic()
            yield from new or [("text", "", [])]
    if stream.left:
        return
    output = stream.view.request.output_text
    if body.top_logprobs is not None and output is not None:
        prompt = stream.view.request.input if body.echo else ""
        for piece, entries in by_token(prompt + output, from_json(stream.view.logprobs or "[]")):
            yield from shown.add(piece, entries)
    yield from shown.rest(answer_parts(stream.view))


class _ShownParts:
    """The parts of an answer that were shown so far."""

    def __init__(self, body: RequestBody) -> None:
        tools = text_parameters(body.offered_tools)
        self._growing = GrowingAnswer(body.answer_form, tools) if tools or body.answer_form != PLAIN else None
        self._entries = list[dict[str, Any]]()
        self._shown: dict[PieceKind, int] = {"reasoning": 0, "text": 0}  # characters shown

    def add(self, piece: str, entries: Sequence[dict[str, Any]] = ()) -> Iterator[Piece]:
        """Adds the next piece of the answer; yields what can be shown."""
        if self._growing is None:
            self._shown["text"] += len(piece)
            yield "text", piece, [*entries]
            return
        self._entries += entries
        yield from self._new(*self._growing.add(piece))

    def rest(self, parts: AnswerParts) -> Iterator[Piece]:
        """Yields what is not yet shown of the ended answer."""
        yield from self._new(parts.reasoning[self._shown["reasoning"] :], parts.text[self._shown["text"] :])
        if self._entries:
            yield "text", "", self._entries

    def _new(self, reasoning: str, text: str) -> Iterator[Piece]:
        parts: tuple[tuple[PieceKind, str], ...] = (("reasoning", reasoning), ("text", text))
        for kind, new in parts:
            if new:
                self._shown[kind] += len(new)
                entries, self._entries = self._entries, []
                yield kind, new, entries


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
