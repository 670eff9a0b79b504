"""The upkeep's queries on a real Postgres: what is older than its retention is deleted, everything else stays."""

from datetime import UTC, datetime, timedelta

from sqlalchemy import text

from models import model_versions
from models.operations import minute_history
from models.session import make_sessions
from models.upkeep import retention
from tasks.chores.upkeep import DELETED_AT_ONCE, do_upkeep
from tests.integration.database_stage import Stage

DAY = timedelta(days=1)


def test_requests_are_deleted_when_they_ended_long_ago(stage: Stage):
    now = datetime.now(UTC)
    stage.request("old", status="completed", finished_at=now - 3 * DAY)
    stage.request("new", status="completed", finished_at=now)
    stage.request("waits", arrived_at=now - 9 * DAY)
    with stage.database.begin() as connection:
        assert retention.delete_old_requests(connection, 2 * DAY.total_seconds(), limit=10) == 1
    assert set(stage.requests("status")) == {"new", "waits"}


def test_one_call_deletes_no_more_than_its_limit(stage: Stage):
    for n in range(5):
        stage.request(f"r{n}", status="completed", finished_at=datetime.now(UTC) - 3 * DAY)
    with stage.database.begin() as connection:
        assert retention.delete_old_requests(connection, 0.0, limit=3) == 3
        assert retention.delete_old_requests(connection, 0.0, limit=3) == 2


def test_one_call_deletes_answered_and_unanswered_requests(stage: Stage):
    for n, status in enumerate(("completed", "incomplete", "failed", "cancelled")):
        stage.request(f"r{n}", status=status, finished_at=datetime.now(UTC) - 3 * DAY)
    with stage.database.begin() as connection:
        assert retention.delete_old_requests(connection, DAY.total_seconds(), limit=10) == 4


def test_one_tick_deletes_far_more_than_one_chunk(stage: Stage):
    stage.request("waits")
    with stage.database.begin() as connection:
        connection.execute(
            text("""
                insert into requests (id, tenant, model, application, instructions, input, body, prompt_tokens,
                    input_tokens, limit_tokens, status, finished_at)
                select 'r' || n, 't', 'm', 'a', '', '', '{}', 1, 1, 1, 'completed', now() - interval '3 days'
                from generate_series(1, :rows) as n
            """),
            {"rows": 2 * DELETED_AT_ONCE + 1},
        )
    do_upkeep(stage.database, DAY.total_seconds())
    assert set(stage.requests("status")) == {"waits"}


def test_the_totals_of_ended_requests_outlive_the_fold_and_count_each_minute_once(stage: Stage):
    def close_a_minute(ago: int) -> None:
        stage.sql(
            """insert into minutes (minute, arrived, completed, incomplete, failed, cancelled, batches, batched,
                valid_tokens, pad_tokens, invalid_tokens)
            values (date_trunc('minute', now()) - make_interval(mins => :ago), 1, 7, 5, 3, 2, 1, 1, 1, 1, 1)""",
            ago=ago,
        )

    with make_sessions(stage.database)() as session:
        assert set(minute_history.ended_totals(session).values()) == {0}
        for minutes in (1, 2, 3):
            close_a_minute(10 - minutes)
            expected = {"completed": 7, "incomplete": 5, "failed": 3, "cancelled": 2}
            expected = {status: minutes * count for status, count in expected.items()}
            assert minute_history.ended_totals(session) == expected
            minute_history.fold_totals(session)
            minute_history.fold_totals(session)
            assert minute_history.ended_totals(session) == expected


def test_batches_are_deleted_when_they_ended_long_ago(stage: Stage):
    stage.worker("w1")
    for status, ended in (("finished", datetime.now(UTC) - 3 * DAY), ("assigned", None)):
        stage.sql(
            """insert into batches (worker, policy, status, size, length, predicted_generation_length, estimated_s,
                finished_at) values ('w1', 'test', :status, 1, 1, 1, 1.0, :ended)""",
            status=status,
            ended=ended,
        )
    with stage.database.begin() as connection:
        assert retention.delete_old_batches(connection, DAY.total_seconds(), limit=10) == 1
    assert stage.sql("select status from batches") == [("assigned",)]


def test_workers_without_a_heartbeat_for_long_are_deleted(stage: Stage):
    stage.worker("gone")
    stage.sql("update workers set heartbeat_at = clock_timestamp() - interval '2 days'")
    stage.worker("here")
    with stage.database.begin() as connection:
        assert retention.delete_old_workers(connection, DAY.total_seconds()) == 1
    assert stage.sql("select name from workers") == [("here",)]


def test_the_newest_superseded_versions_of_each_kind_are_kept(stage: Stage):
    with stage.database.begin() as connection:
        names = [
            model_versions.publish(connection, "length", b"", b"", {}, {}) for _ in range(retention.VERSIONS_KEPT + 3)
        ]
        other = model_versions.publish(connection, "serving_time", b"", b"", {}, {})
        assert retention.delete_superseded_versions(connection) == 2
    assert stage.sql("select version from model_versions order by id") == [(name,) for name in [*names[2:], other]]
