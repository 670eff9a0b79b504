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

from models.planner_state import write_service_state
from models.service_tables import ServiceState
from scheduling.forecast.queue_order import QueueOrder
from scheduling.request import RowLength

# A snapshot older than this is ignored: the planner is away, and its estimates no longer hold. Twenty times the usual
# 0.5 s between two snapshots, so that one slow step does not hide the positions; not tuned.
STALE_AFTER = timedelta(seconds=10)


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True)


class BatchInQueue(_Value):
    """A waiting batch; `ids` are the requests that the snapshot names, and `size` counts all requests of the batch."""

    ids: tuple[str, ...]
    size: int
    estimated_s: float
    starts_in_s: float  # seconds from the snapshot to its start, if no other request arrives
    length: int = 0  # Eq. (2) of Magnus: tokens of the longest prompt
    generation_length: int = 0  # predicted tokens of the longest answer
    response_ratio: float = 0.0
    sealed: bool = False  # whether no further request may join the batch
    wasted: float = 0.0  # wasted memory accesses, Eq. (4) of Magnus, in tokens
    memory_share: float | None = None  # the share of a worker's memory Θ that it may fill; None without a worker


class AnswerForecast(NamedTuple):
    """A request's expected answer time, in seconds from the forecast, and its place in the queue (None if it runs).

    The interval's ends are None while too few errors of forecasts are known. `length` is that of a running row.
    """

    place: int | None
    seconds: float
    low_s: float | None
    high_s: float | None
    length: RowLength | None = None


class ModelForecast(_Value):
    """The forecast for one model's requests, in seconds from `at`, a Unix time."""

    at: float
    order: QueueOrder | None = None  # from which the response time of a request that comes now follows
    jobs: Mapping[str, AnswerForecast] = {}  # the forecasts of single requests, by request id
    behind: AnswerForecast | None = None  # the forecast for the middle of the waiting requests not in `jobs`


class Decisions(_Value):
    """How the planner decides (epoch, policy, duration), and what keeps its decisions from the workers."""

    epoch: int = 0
    policy: str = ""
    last_s: float = 0.0  # duration of the policy's last decision
    paused: bool = False  # whether an operator has paused planning, so that nothing is assigned
    off_peak_at: float | None = None  # when the next off-peak hours begin, a Unix time; None within such hours
    spent_tenants: tuple[str, ...] = ()  # whose budget is spent, so that their requests wait
    spent_jobs: tuple[str, ...] = ()
    broker_error: str | None = None  # why the broker takes no messages, in the broker's own words


class WaitingQueue(_Value):
    """The waiting requests of all models, and when workers are free for them, in seconds from the snapshot."""

    requests: int = 0
    backlog_s: float = 0.0  # seconds until a worker is free for a request that arrives now
    served_s: float = 0.0  # moving average of the serving times of recent batches
    batches: tuple[BatchInQueue, ...] = Field(default=(), repr=False)  # only the first batches if the queue is long

    @property
    def typical_s(self) -> float:
        """The mean estimated serving time of the waiting batches, or `served_s` if no batch waits."""
        if not self.batches:
            return self.served_s
        return sum(batch.estimated_s for batch in self.batches) / len(self.batches)

    @property
    def named_ids(self) -> list[str]:
        """The ids of the waiting requests that the snapshot names, in the order of service."""
        return [request_id for batch in self.batches for request_id in batch.ids]

    @cached_property
    def places(self) -> Mapping[str, tuple[int, float]]:
        """The place of each named request, and the seconds from the snapshot to the expected end of its batch."""
        places: dict[str, tuple[int, float]] = {}
        ahead = 0
        for batch in self.batches:
            ends_s = batch.starts_in_s + batch.estimated_s
            places |= {request_id: (place, ends_s) for place, request_id in enumerate(batch.ids, start=ahead + 1)}
            ahead += batch.size
        return places


class ModelState(_Value):
    """The workers of one model, and the requests that none of them can take."""

    workers: int = 0  # live workers that have the model loaded
    unserved: int = 0  # the model's queued requests if no live worker has it or can load it, else 0
    unserved_s: float = 0.0  # for how long the model has had requests and no worker
    largest_tokens: int | None = None  # tokens that the largest worker's KV cache holds; None if it is not known
    lacking: tuple[str, ...] = ()  # abilities that none of the model's workers has


NO_MODEL = ModelState()


class ModelForecasts(_Value):
    """The last forecast of each model, and the CPU seconds that this planner has spent on forecasts since it leads."""

    spent_s: float = 0.0
    of_models: Mapping[str, ModelForecast] = {}


class QueueSnapshot(_Value):
    """What the planner publishes, one part for each of its concerns; instants are times of the database's clock.

    One module of the planner writes each part. A new figure is a field of one part.
    """

    at: datetime = Field(exclude=True, repr=False)  # when the row was written
    version: Literal[3] = 3
    decisions: Decisions = Decisions()
    queue: WaitingQueue = WaitingQueue()
    models: Mapping[str, ModelState] = {}
    forecasts: ModelForecasts = Field(default=ModelForecasts(), repr=False)

    def of(self, model: str) -> ModelState:
        """Returns the state of a model's workers."""
        return self.models.get(model, NO_MODEL)

    @property
    def unserved(self) -> Mapping[str, int]:
        """The number of queued requests of each model that has requests and no worker."""
        return {model: state.unserved for model, state in self.models.items() if state.unserved}

    def order(self, model: str) -> QueueOrder | None:
        """Returns the order of a model's queue; None while the model has no worker."""
        forecast = self.forecasts.of_models.get(model)
        return None if forecast is None else forecast.order


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
