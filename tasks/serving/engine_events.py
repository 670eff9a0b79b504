"""What the engine's thread reports to the result writer: values with the monotonic instants at which they happened."""

from dataclasses import dataclass

from inference.sequences import FinishedSequence
from models.batch_results import Figures
from models.leases import Lease
from models.tables import BatchStatus


@dataclass(frozen=True, slots=True)
class BatchBegan:
    """The engine began to serve a batch."""

    lease: Lease
    at: float


@dataclass(frozen=True, slots=True)
class RowEnded:
    """A request has its answer: complete, cut off at its limit, or removed on request."""

    lease: Lease
    ended: FinishedSequence
    stop: tuple[str, ...]
    at: float


@dataclass(frozen=True, slots=True)
class RowReturned:
    """A request goes back to the queue, with the tokens generated so far."""

    lease: Lease
    request_id: str
    generated_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RowFailed:
    """A request can never be answered; its client reads `code` and `message`."""

    lease: Lease
    request_id: str
    code: str
    message: str
    at: float


@dataclass(frozen=True, slots=True)
class BatchEnded:
    """The last event of a batch. With `counts_as_attempt`, its unanswered requests have used up one attempt."""

    lease: Lease
    status: BatchStatus
    at: float
    figures: Figures | None = None
    counts_as_attempt: bool = False


EngineEvent = BatchBegan | RowEnded | RowReturned | RowFailed | BatchEnded
