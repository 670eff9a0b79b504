"""Samples of every ten seconds, the minutes that keep them, and both as points of a chart."""

from typing import Any

import pytest

from models.connections.session import make_sessions
from models.operations import minute_history
from models.operations.service_history import HistoryPoint, history, take_samples
from tests.integration.database_stage import Stage


def answered(stage: Stage, id: str, ended_ago_s: float, took_s: float = 2.0, **columns: Any) -> None:
    stage.request(id, **columns)
    stage.sql(
        """update requests set status = 'completed', output_tokens = 12,
            arrived_at = clock_timestamp() - make_interval(secs => :ago + :took),
            finished_at = clock_timestamp() - make_interval(secs => :ago) where id = :id""",
        id=id,
        ago=ended_ago_s,
        took=took_s,
    )


def read(stage: Stage, back_s: int = 900, step_s: int = 10) -> list[HistoryPoint]:
    with make_sessions(stage.database)() as session:
        return history(session, back_s, step_s)


def sample(stage: Stage) -> int:
    with make_sessions(stage.database)() as session:
        return take_samples(session)


def test_the_first_sample_is_there_at_the_first_look(stage: Stage) -> None:
    stage.request("resp_waiting")
    assert sample(stage) == 1
    (point,) = read(stage)
    assert (point.backlog, point.in_flight, point.answers, point.seconds) == (1, 0, 0, 10)
    assert point.oldest_s is not None
    assert [long.backlog for long in read(stage, 6 * 3600, 300)] == [1]  # the longer charts begin with it, too


def test_what_ended_counts_in_the_ten_seconds_in_which_it_ended(stage: Stage) -> None:
    sample(stage)
    stage.sql("update samples set at = at - interval '50 s'")
    for n in range(3):
        answered(stage, f"resp_{n}", 25.0 + n / 10, predicted_tokens=10, predicted_upper_tokens=11 + n)
    stage.request("resp_failed")
    stage.sql(
        """update requests set status = 'failed', finished_at = clock_timestamp() - interval '20 s'
        where id = 'resp_failed'"""
    )
    assert sample(stage) >= 3  # the samples in between, too
    points = read(stage)
    assert sum(point.answers for point in points) == 3
    assert sum(point.failed for point in points) == 1
    assert sum(point.answer_tokens for point in points) == 36
    assert sum(point.predicted or 0 for point in points) == 3
    assert sum(point.squared_error or 0 for point in points) == 3 * (12 - 10) ** 2
    assert sum(point.covered or 0 for point in points) == 2  # an upper quantile of 11 was too low
    assert max(point.response_p50_s or 0 for point in points) == pytest.approx(2.0, abs=0.01)


def test_a_closed_minute_keeps_its_samples_and_they_are_not_counted_twice(stage: Stage) -> None:
    answered(stage, "resp_1", 130.0)
    stage.request("resp_waiting")
    sample(stage)
    # as if that sample had been taken in the minute of the answer
    stage.sql(
        """update samples set backlog = 7, answers = 1, answer_tokens = 12,
            at = date_bin('10 s', (select finished_at from requests where id = 'resp_1'), 'epoch') + interval '10 s'"""
    )
    with make_sessions(stage.database)() as session:
        assert minute_history.close_minutes(session) > 0
    (closed,) = stage.sql("select * from minutes where completed > 0")
    assert (closed.backlog, closed.answer_tokens) == (7, 12)
    assert closed.response_p99_s == pytest.approx(2.0, abs=0.01)
    points = read(stage, 6 * 3600, 300)
    assert sum(point.answers for point in points) == 1
    assert max(point.backlog or 0 for point in points) == 7
