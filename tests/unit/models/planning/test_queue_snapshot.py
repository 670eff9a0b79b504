"""The planner's snapshot is read as it was written, or not at all."""

from datetime import UTC, datetime

import pytest

from models.planning.queue_snapshot import (
    AnswerForecast,
    BatchInQueue,
    Decisions,
    ModelForecast,
    ModelForecasts,
    ModelState,
    QueueSnapshot,
    WaitingQueue,
    parse_queue_snapshot,
)
from scheduling.forecast.queue_order import Group, QueueOrder

NOW = datetime(2026, 11, 20, 21, 10, tzinfo=UTC)
ORDER = QueueOrder((0.0, 0.0, 0.1, 0.0), 0.1, 1.0, waiting=(Group(0.0, 3.0, (0.0,) * 5, (0.0,) * 5),))
SNAPSHOT = QueueSnapshot(
    at=NOW,
    decisions=Decisions(epoch=3, policy="fusion"),
    queue=WaitingQueue(
        requests=2,
        backlog_s=1.5,
        batches=(BatchInQueue(ids=("a", "b"), size=2, estimated_s=3.0, starts_in_s=0.5, memory_share=0.2),),
    ),
    models={"small": ModelState(unserved=2, largest_tokens=100, lacking=("logprobs",)), "other": ModelState()},
    forecasts=ModelForecasts(
        of_models={"small": ModelForecast(at=5.0, order=ORDER, jobs={"a": AnswerForecast(1, 2.0, 1.0, 3.0)})}
    ),
)


def test_what_is_written_is_read() -> None:
    assert parse_queue_snapshot(SNAPSHOT.model_dump(mode="json"), NOW) == SNAPSHOT


@pytest.mark.parametrize("version", [0, 2, None, "3"])
def test_a_snapshot_of_another_release_reads_as_none(version: object) -> None:
    assert parse_queue_snapshot(SNAPSHOT.model_dump(mode="json") | {"version": version}, NOW) is None
