"""What `benchmarks.scale` reads of a run, from requests and batches inserted by hand."""

import pytest
from sqlalchemy import Engine, text

from benchmarks.scale.run_figures import idle_since, served_since
from tests.integration.database_stage import Stage

T0 = 1_700_000_000.0


def served(stage: Stage, id: str, arrived: float, started: float, finished: float) -> None:
    stage.request(id)
    stage.sql(
        """update requests set status = 'completed', arrived_at = to_timestamp(:arrived),
        started_at = to_timestamp(:started), finished_at = to_timestamp(:finished) where id = :id""",
        id=id,
        arrived=T0 + arrived,
        started=T0 + started,
        finished=T0 + finished,
    )


def batch(stage: Stage, worker: str, started: float, finished: float) -> None:
    stage.sql(
        """insert into batches (worker, policy, size, length, predicted_generation_length, estimated_s, status,
        started_at, finished_at)
        values (:worker, 'fusion', 1, 5, 5, 1, 'finished', to_timestamp(:started), to_timestamp(:finished))""",
        worker=worker,
        started=T0 + started,
        finished=T0 + finished,
    )


@pytest.fixture
def run(stage: Stage) -> Engine:
    """Arrivals at 0, 3 and 9 s; the second waits for 2.25 s, while one worker runs on for 1.25 s and one all along."""
    served(stage, "first", 0.0, 0.1, 4.25)
    served(stage, "second", 3.0, 5.25, 8.0)
    served(stage, "third", 9.0, 9.1, 11.75)
    batch(stage, stage.worker("w1"), 0.1, 4.25)
    batch(stage, stage.worker("w2"), 3.0, 8.0)
    return stage.database


def test_answers_are_counted_from_a_third_of_the_arrivals_on_until_the_last_one(run: Engine) -> None:
    with run.connect() as connection:
        figures = served_since(connection, T0)
    # the answers at 4.25 and 8 s lie between 3 and 9 s; the response times are 4.25, 5 and 2.75 s
    assert (figures["requests"], figures["served_per_s"]) == (3, round(2 / 6, 2))
    assert (figures["response_s"]["mean"], figures["response_s"]["p50"]) == (4.0, 4.25)


def test_a_worker_is_idle_only_while_a_request_has_waited_for_a_quarter_of_a_second(run: Engine) -> None:
    with run.connect() as connection:
        figures = idle_since(connection, T0, workers=2)
    # waited from 3.25 to 5.25 s: of 2 · 2 s the first worker was busy for 1 s, the second for 2 s
    assert (figures["waited_s"], figures["idle_while_waiting"]) == (2.0, 1 - 3 / 4)


def test_without_waiting_requests_no_share_is_told(run: Engine) -> None:
    with run.connect() as connection:
        connection.execute(text("delete from requests where id = 'second'"))
        assert idle_since(connection, T0, workers=2)["idle_while_waiting"] is None
