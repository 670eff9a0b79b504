"""The events that the engine's thread reports to the result writer; `at` is in monotonic seconds."""

from dataclasses import dataclass
from typing import Protocol

from inference.answer_text import storable
from inference.engine_requests import EngineRequest, FinishedRow
from models.leasing.batch_results import BatchBegan, BatchEnded, RowReturned
from models.leasing.leases import Lease
from models.new_requests import REFUSED_BY_ENGINE
from request_body import PLAIN, AnswerForm


@dataclass(frozen=True, slots=True)
class RowEnded:
    """A request's answer: complete, cut off, or removed on request; `gpu_s` is its share of the batch's seconds."""

    lease: Lease
    ended: FinishedRow
    stop: tuple[str, ...]
    at: float
    with_logprobs: bool = False
    continues: bool = False  # whether the answer continues the prompt's text
    gpu_s: float = 0.0
    answer_form: AnswerForm = PLAIN
    first_token_at: float | None = None  # None if its first token came in an earlier batch, or it has no token


@dataclass(frozen=True, slots=True)
class RowFailed:
    """A request can never be answered; its client reads `code` and `message`."""

    lease: Lease
    request_id: str
    code: str
    message: str
    at: float


EngineEvent = BatchBegan | RowEnded | RowReturned | RowFailed | BatchEnded


def event_of_row(
    lease: Lease, asked: EngineRequest, row: FinishedRow, at: float, gpu_s: float, first_token_at: float | None
) -> EngineEvent:
    """Returns the event of a row that its engine has finished with; `asked` is the row as it entered the engine."""
    if row.reason in ("unfinished", "failed", "parked"):  # its server is unreachable, full or did not answer this row
        return RowReturned(
            lease,
            row.id,
            row.generated_ids,
            logprobs=row.logprobs,
            gpu_s=gpu_s,
            first_token_at=first_token_at,
            blamed=storable(row.refusal) if row.reason == "failed" else "",
            parked=row.reason == "parked",
        )
    if row.reason == "refused":
        return RowFailed(lease, row.id, REFUSED_BY_ENGINE, row.refusal, at)
    with_logprobs = asked.top_logprobs is not None
    return RowEnded(
        lease, row, asked.stop, at, with_logprobs, asked.continues, gpu_s, asked.answer_form, first_token_at
    )


class Record(Protocol):
    """The function to which the engine's thread reports events; the events of one call are written together."""

    def __call__(self, *events: EngineEvent) -> None:
        """Hands over events, which are written soon, after the events recorded before."""
