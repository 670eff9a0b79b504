"""Tells the client of a stream about once a second how many tokens and seconds its answer still takes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from models.client_requests import RequestView
from models.planning.queue_position import QueuePlace
from protocol.field_types import AskedProgress
from protocol.responses.response_objects import magnus_of
from protocol.streaming.server_sent_events import KEEP_ALIVE_S, comment
from request_body import readable_body

PROGRESS_S = 1.0  # between two figures of an answer
Present = Callable[[RequestView], tuple[RequestView, QueuePlace]]
Magnus = dict[str, Any]  # the `magnus` object of an answer, with the answer's index in its call


@dataclass(frozen=True, slots=True)
class ShownProgress:
    """How a stream tells its progress, if it does: as an event, or as a comment, which browsers' parsers skip.

    `present` returns a running answer's place, and its view with the present instant; `count` counts a text's tokens.
    """

    present: Present
    count: Callable[[str], int]
    asked: AskedProgress | None = None

    @property
    def wait_s(self) -> float:
        """The most seconds for which a stream waits for text before it says something else."""
        return PROGRESS_S if self.asked else KEEP_ALIVE_S


class AnswerProgress:
    """The tokens of one answer's shown text, and when its progress was told last."""

    def __init__(self, shown: ShownProgress) -> None:
        self._shown, self._tokens, self._told_at = shown, 0, -PROGRESS_S

    def add(self, text: str) -> None:
        """Counts a text that is sent."""
        if self._shown.asked:
            self._tokens += self._shown.count(text)

    def told(self, view: RequestView, event_of: Callable[[Magnus], bytes], index: int = 0) -> Iterator[bytes]:
        """Yields the answer's `magnus` object with its `index`, by `event_of` or as a comment, if it is due."""
        if not self._shown.asked or monotonic() < self._told_at + PROGRESS_S:
            return
        self._told_at = monotonic()
        now, place = self._shown.present(replace(view, tokens_so_far=self._tokens))
        magnus = {"index": index, **magnus_of(now, place, readable_body(view.request.body)).model_dump()}
        yield comment("progress", magnus) if self._shown.asked == "comment" else event_of(magnus)
