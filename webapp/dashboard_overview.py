"""What the dashboard's overview shows, read in one session."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy.orm import Session

from models import ended_requests, minute_history, operator_overview, queue_position
from models.client_requests import RequestView
from models.minute_history import EndedCounts
from models.operator_overview import Application, LearnedModel, RequestCounts, WorkerState
from models.queue_position import QueueSnapshot
from models.service_tables import Minute
from webapp.svg_charts import Bucket, Chart, Series, line_chart, stacked_bars, time_buckets

SHOWN_ANSWERS = 12  # rows of the table of last answers; not tuned


@dataclass(frozen=True)
class Overview:
    """Everything on the overview, as of one moment."""

    now: RequestCounts
    ended: EndedCounts
    queue_snapshot: QueueSnapshot | None  # None while no planner writes one
    applications: list[Application]
    workers: list[WorkerState]
    learned: list[LearnedModel]
    missing: list[str]  # what keeps requests from being served as usual
    answers: Sequence[RequestView]
    charts: list[Chart]


def read_overview(session: Session, hours: int, worker_alive_s: float) -> Overview:
    """Read the overview, with charts of the last `hours`; a worker is alive for `worker_alive_s` after a heartbeat."""
    now = operator_overview.request_counts(session, worker_alive_s)
    back = timedelta(hours=hours)
    return Overview(
        now=now,
        ended=minute_history.ended_last_hour(session),
        queue_snapshot=queue_position.read_queue_snapshot(session),
        applications=operator_overview.applications(session),
        workers=operator_overview.workers(session),
        learned=operator_overview.learned_models(session),
        missing=operator_overview.what_is_missing(session, worker_alive_s),
        answers=ended_requests.last_ended(session, SHOWN_ANSWERS),
        charts=charts(time_buckets(minute_history.minutes(session, back), now.now, back)),
    )


def charts(buckets: Sequence[Bucket]) -> list[Chart]:
    """The three pictures: what ended, how long it took, what the tokens were spent on."""
    return [
        stacked_bars(
            "Requests that ended",
            "Each bar is what ended in that time, by its final state.",
            [
                Series("good", "completed", total("completed")),
                Series("short", "incomplete", total("incomplete")),
                Series("none", "cancelled", total("cancelled")),
                Series("bad", "failed", total("failed")),
            ],
            buckets,
        ),
        line_chart(
            "Response time, seconds",
            "From arrival to the end of the answer; over several minutes the worst of their values.",
            [
                Series("first", "median", worst("response_p50_s")),
                Series("second", "P95", worst("response_p95_s")),
                Series("third", "longest", worst("response_max_s")),
            ],
            buckets,
        ),
        stacked_bars(
            "Tokens computed",
            "Valid ones are answers; invalid ones were generated behind an answer's end while its batch went on; "
            "padding makes prompts of a batch equally long.",
            [
                Series("good", "valid", total("valid_tokens")),
                Series("short", "invalid", total("invalid_tokens")),
                Series("none", "padding", total("pad_tokens")),
            ],
            buckets,
        ),
    ]


def total(field: str) -> Callable[[Sequence[Minute]], float]:
    """The sum of a field over some minutes."""
    return lambda minutes: float(sum(getattr(minute, field) for minute in minutes))


def worst(field: str) -> Callable[[Sequence[Minute]], float | None]:
    """The largest value of a field over some minutes; None if none has one."""
    return lambda minutes: max((v for m in minutes if (v := getattr(m, field)) is not None), default=None)
