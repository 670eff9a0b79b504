"""The reports of a simulated worker: requests and batches that ended, rows that joined or came back, models loaded."""

from dataclasses import dataclass

from scheduling.policy import Assignment
from scheduling.request import Request
from scheduling.simulation.engine_costs import StaticRun


@dataclass(frozen=True, slots=True)
class RequestDone:
    """A request has its last token."""

    request: Request
    generated: int


@dataclass(frozen=True, slots=True)
class Requeued:
    """A request comes back unfinished with its generated tokens; it is `preempted` if it had to leave a batch."""

    request: Request
    preempted: bool


@dataclass(frozen=True, slots=True)
class Preempted:
    """A row waits at its worker until memory holds it again; it keeps its tokens, and is then prefilled again."""

    request: Request


@dataclass(frozen=True, slots=True)
class StaticBatchDone:
    """A run-to-completion batch has ended or run out of memory."""

    assignment: Assignment
    started_at: float
    run: StaticRun


@dataclass(frozen=True, slots=True)
class RowsJoined:
    """A group has joined the continuous batch; its prefill ends at `at`, or begins then if it is chunked."""

    assignment: Assignment
    at: float
    length: int


@dataclass(frozen=True, slots=True)
class RanOutOfMemory:
    """A batch, a group of joiners, or the row that joined last did not fit; its requests go back to the policy.

    If it was `alone`, it was a single request in an otherwise empty memory.
    """

    assignment: Assignment
    alone: bool


@dataclass(frozen=True, slots=True)
class ModelLoaded:
    """The worker has loaded a model; the loading began at `began_at`."""

    model: str
    began_at: float


Outcome = RequestDone | Requeued | Preempted | StaticBatchDone | RowsJoined | RanOutOfMemory | ModelLoaded
