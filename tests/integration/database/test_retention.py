"""The upkeep's queries on a real Postgres: what is older than its retention is deleted, everything else stays."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from models import model_versions
from models.bulk import bulk_jobs, stored_files
from models.bulk.stored_files import CHUNKS_AT_ONCE
from models.connections.session import make_sessions
from models.operations import minute_history
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


def test_one_call_deletes_no_more_than_its_bytes_and_at_least_one_request(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(3):
        stage.request(f"r{n}", input="x" * 3000, status="completed", finished_at=datetime.now(UTC) - (3 - n) * DAY)
    monkeypatch.setattr(retention, "MOST_BYTES", 100)
    with stage.database.begin() as connection:
        assert retention.delete_old_requests(connection, 0.0, limit=10) == 1
    assert set(stage.requests("status")) == {"r1", "r2"}
    do_upkeep(stage.database, 0.0)
    assert stage.requests("status") == {}


def test_a_file_and_a_batch_are_deleted_in_steps_that_count_their_chunks_and_lines(stage: Stage) -> None:
    stage.sql(
        """insert into files (id, tenant, purpose, filename, bytes, expires_at)
        values ('f', 't', 'batch', '', 1, now())"""
    )
    stage.sql("insert into file_chunks select 'f', n, 'x' from generate_series(1, :some) n", some=CHUNKS_AT_ONCE + 7)
    stage.sql(
        """insert into bulk_jobs (id, tenant, endpoint, input_file_id, completion_window, lines, last_line, expires_at,
            status, completed_at) values ('b', 't', '', 'f', '24h', 5, 5, now(), 'completed', now())"""
    )
    stage.sql("insert into bulk_lines (job_id, line) select 'b', n from generate_series(1, 5) n")
    with stage.database.begin() as connection:
        assert stored_files.delete_old_chunks(connection, 0.0, 2000) == CHUNKS_AT_ONCE
        assert stored_files.delete_old_files(connection, 0.0, 2000) == 0
        assert stored_files.delete_old_chunks(connection, 0.0, 2000) == 7
        assert stored_files.delete_old_files(connection, 0.0, 2000) == 1
        assert [bulk_jobs.delete_old_lines(connection, 0.0, 3) for _ in range(2)] == [3, 2]
        assert bulk_jobs.delete_old_jobs(connection, 0.0, 3) == 1


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
