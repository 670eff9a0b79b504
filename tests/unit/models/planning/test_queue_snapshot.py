"""The planner's snapshot is read as it was written, or not at all."""

from datetime import UTC, datetime

import pytest

from models.planning.queue_snapshot import (
    AnswerForecast,
    BatchInQueue,
    ModelForecast,
    QueueSnapshot,
    parse_queue_snapshot,
)

NOW = datetime(2026, 11, 20, 21, 10, tzinfo=UTC)
SNAPSHOT = QueueSnapshot(
    at=NOW,
    epoch=3,
    policy="fusion",
    waiting=2,
    backlog_s=1.5,
    largest_tokens={"small": 100},
    lacking={"small": ("logprobs",)},
    batches=(BatchInQueue(ids=("a", "b"), size=2, estimated_s=3.0, starts_in_s=0.5, memory_share=0.2),),
    forecasts={"small": ModelForecast(at=5.0, line=(1.0, 0.1), jobs={"a": AnswerForecast(1, 2.0, 1.0, 3.0)})},
)


def test_what_is_written_is_read() -> None:
    assert parse_queue_snapshot(SNAPSHOT.model_dump(mode="json"), NOW) == SNAPSHOT


@pytest.mark.parametrize("version", [0, 2, None, "1"])
def test_a_snapshot_of_another_release_reads_as_none(version: object) -> None:
    assert parse_queue_snapshot(SNAPSHOT.model_dump(mode="json") | {"version": version}, NOW) is None


def test_a_snapshot_without_a_version_reads_as_none() -> None:
    assert parse_queue_snapshot({"waiting": 3, "backlog_s": 1.0}, NOW) is None


def test_the_requests_that_are_named_have_places_and_the_end_of_their_batch() -> None:
    assert SNAPSHOT.named_ids == ["a", "b"]
    assert SNAPSHOT.batch_places == {"a": (1, 3.5), "b": (2, 3.5)}
