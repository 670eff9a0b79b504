"""What the engine's thread tells the recorder: values with the monotonic instants at which they happened."""

from dataclasses import dataclass

from inference.sequences import FinishedSequence
from models.batch_results import Figures
from models.leases import Lease
from models.tables import BatchStatus


@dataclass(frozen=True, slots=True)
class BatchBegan:
    """The engine took a batch up."""

    lease: Lease
    at: float


@dataclass(frozen=True, slots=True)
class RowEnded:
    """A request's answer is there, complete or cut off or removed on request."""

    lease: Lease
    ended: FinishedSequence
    stop: tuple[str, ...]
    at: float


@dataclass(frozen=True, slots=True)
class RowReturned:
    """A request goes back to the queue with what was generated."""

    lease: Lease
    request_id: str
    generated_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RowFailed:
    """A request can never be answered; `code` and `message` are for its client."""

    lease: Lease
    request_id: str
    code: str
    message: str
    at: float


@dataclass(frozen=True, slots=True)
class BatchEnded:
    """Nothing more will be said of this batch; `counts_as_attempt` if what is still in it had a failed attempt."""

    lease: Lease
    status: BatchStatus
    at: float
    figures: Figures | None = None
    counts_as_attempt: bool = False


Event = BatchBegan | RowEnded | RowReturned | RowFailed | BatchEnded
