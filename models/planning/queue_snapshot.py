"""The planner's snapshot of the queue: the value that it writes and that every other process reads.

The planner writes it to `service_state['planner']` at most twice a second, with its last forecast of running and
waiting requests. A snapshot that is too old, or that another release wrote in another form, is not read.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sqlalchemy import Connection, func, select
from sqlalchemy.orm import Session

from models.planning.planner_state import write_service_state
from models.service_tables import ServiceState
from scheduling.forecast.expectations import ResponseLine

# A snapshot older than this is ignored: the planner is away, and its estimates no longer hold. Twenty times the usual
# 0.5 s between two snapshots, so that one slow step does not hide the positions; not tuned.
STALE_AFTER = timedelta(seconds=10)


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True)


class BatchInQueue(_Value):
    """A waiting batch: the ids that the snapshot names, its `size` in requests, its tokens and its times in seconds."""

    ids: tuple[str, ...]
    size: int
    estimated_s: float
    starts_in_s: float  # seconds from the snapshot, if no other request arrives
    length: int = 0  # Eq. (2) of Magnus: tokens of the longest prompt
    generation_length: int = 0  # predicted tokens of the longest answer
    response_ratio: float = 0.0
    sealed: bool = False  # no request may join it
    wasted: float = 0.0  # wasted memory accesses, Eq. (4) of Magnus, in tokens
    memory_share: float | None = None  # the share of a worker's Θ that it may fill; None while there is no worker


class AnswerForecast(NamedTuple):
    """A request's expected answer time, in seconds from the forecast, and its place in the queue (None if it runs)."""

    place: int | None
    seconds: float
    low_s: float
    high_s: float


class ModelForecast(_Value):
    """The forecast for one model's requests, in seconds from `at`, a Unix time."""

    at: float
    line: tuple[float, float] | None = None  # response time of a request that comes now: base seconds, seconds a token
    jobs: Mapping[str, AnswerForecast] = {}  # by request id
    behind: AnswerForecast | None = None  # for the middle one of the waiting requests that `jobs` does not name


class QueueSnapshot(_Value):
    """The waiting batches, their expected times, and the abilities that workers lack; instants by database clock."""

    at: datetime = Field(exclude=True, repr=False)  # when the row was written
    version: Literal[1] = 1
    epoch: int = 0
    policy: str = ""
    waiting: int = 0  # queued requests
    broker_error: str | None = None  # why the broker takes no messages, in its own words
    unserved: Mapping[str, int] = {}  # by model: queued requests for which no live worker can be asked
    unserved_s: Mapping[str, float] = {}  # for how long these models have had requests and no worker
    backlog_s: float = 0.0  # seconds until a worker is free for a request that comes now
    served_s: float = 0.0  # serving time of recently served batches, their moving average
    decision_s: float = 0.0  # duration of the policy's last decision
    forecasting_s: float = 0.0  # CPU seconds spent on forecasts since the planner began to lead
    largest_tokens: Mapping[str, int] = {}  # by model: tokens that its largest worker's KV cache holds
    lacking: Mapping[str, tuple[str, ...]] = {}  # by model: abilities that none of its workers has
    batches: tuple[BatchInQueue, ...] = Field(default=(), repr=False)  # only the first batches if the queue is long
    forecasts: Mapping[str, ModelForecast] = Field(default={}, repr=False)  # by model

    @property
    def typical_s(self) -> float:
        """The mean estimated serving time of the waiting batches, else of recently served ones."""
        if not self.batches:
            return self.served_s
        return sum(batch.estimated_s for batch in self.batches) / len(self.batches)

    @property
    def named_ids(self) -> list[str]:
        """The ids of the waiting requests that the snapshot names, in the order of service."""
        return [request_id for batch in self.batches for request_id in batch.ids]

    def response_line(self, model: str) -> ResponseLine | None:
        """Returns the response time of a request that arrives now, by its tokens, or None if there is no forecast."""
        forecast = self.forecasts.get(model)
        return None if forecast is None or forecast.line is None else ResponseLine(*forecast.line)

    @cached_property
    def batch_places(self) -> Mapping[str, tuple[int, float]]:
        """The place of each named request, and the seconds from the snapshot to the expected end of its batch."""
        places: dict[str, tuple[int, float]] = {}
        ahead = 0
        for batch in self.batches:
            ends_s = batch.starts_in_s + batch.estimated_s
            places |= {request_id: (place, ends_s) for place, request_id in enumerate(batch.ids, start=ahead + 1)}
            ahead += batch.size
        return places


def write_queue_snapshot(connection: Connection, snapshot: QueueSnapshot) -> None:
    """Replaces the stored snapshot."""
    write_service_state(connection, "planner", snapshot)


def read_queue_snapshot(session: Session) -> QueueSnapshot | None:
    """Returns the last snapshot; None before the first, or if it is older than STALE_AFTER by the database's clock."""
    row = session.execute(
        select(ServiceState.value, ServiceState.updated_at, func.clock_timestamp().label("now")).where(
            ServiceState.name == "planner"
        )
    ).one_or_none()
    if row is None or row.now - row.updated_at > STALE_AFTER:
        return None
    return parse_queue_snapshot(row.value, row.updated_at)


def parse_queue_snapshot(stored: Mapping[str, Any], at: datetime) -> QueueSnapshot | None:
    """Returns the snapshot that was stored at this instant, or None if another release wrote it in another form."""
    try:
        return QueueSnapshot.model_validate({"version": None, **stored, "at": at})
    except ValidationError:
        return None


def instant(forecast: ModelForecast, seconds: float) -> datetime:
    """Returns the instant this many seconds after a forecast."""
    return datetime.fromtimestamp(forecast.at, UTC) + timedelta(seconds=seconds)
