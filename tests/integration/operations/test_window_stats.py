"""The service's figures for a window of time, from batches and workers inserted by hand."""

import psycopg
import pytest

from models.connections.session import make_engine, make_sessions
from models.operations.window_stats import WindowStats, window_stats

T0 = 1_700_000_000.0


def read(database_url: str, since: float | None = None, until: float | None = None) -> WindowStats:
    engine = make_engine(database_url, pool_size=1)
    try:
        with make_sessions(engine)() as session:
            return window_stats(session, since, until)
    finally:
        engine.dispose()


def worker(connection: psycopg.Connection, name: str, from_s: float, to_s: float) -> None:
    connection.execute(
        "insert into workers (name, model, facts, longest_row_tokens, started_at, heartbeat_at, stopped_at) "
        "values (%s, 'm', '{}', 1, to_timestamp(%s), to_timestamp(%s), to_timestamp(%s))",
        (name, T0 + from_s, T0 + to_s, T0 + to_s),
    )


def batch(connection: psycopg.Connection, worker: str, from_s: float, to_s: float, size: int, **more: object) -> None:
    values: dict[str, object] = {"status": "finished", "valid_tokens": 10, "pad_tokens": 2, "invalid_tokens": 3}
    values |= {"iterations": 5} | more
    connection.execute(
        "insert into batches (worker, policy, size, length, predicted_generation_length, estimated_s, status, "
        "valid_tokens, pad_tokens, invalid_tokens, iterations, started_at, finished_at) "
        "values (%s, 'magnus', %s, 5, 5, 1, %s, %s, %s, %s, %s, to_timestamp(%s), to_timestamp(%s))",
        (worker, size, *values.values(), T0 + from_s, T0 + to_s),
    )


def test_batches_of_the_window_are_counted_and_those_outside_are_not(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        worker(connection, "a", 0, 100)
        batch(connection, "a", 0, 11, size=9)  # began before the window
        batch(connection, "a", 12, 14, size=2)
        batch(connection, "a", 15, 25, size=6)  # ended after it
        batch(connection, "a", 18, 19, size=4, status="out_of_memory")
    seen = read(database_url, T0 + 10, T0 + 20)
    assert seen.batches == 2
    assert (seen.valid_tokens, seen.pad_tokens, seen.invalid_tokens) == (20, 4, 6)


def test_the_mean_batch_size_is_the_number_of_rows_that_decode_together_averaged_over_time(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        worker(connection, "a", 0, 100)
        worker(connection, "b", 0, 100)
        batch(connection, "a", 0, 2, size=4, valid_tokens=30, invalid_tokens=10, iterations=10)  # 4 rows for 2 s
        batch(connection, "b", 0, 4, size=2, valid_tokens=20, invalid_tokens=0, iterations=20)  # 1 on average for 4 s
        batch(connection, "b", 2, 6, size=9, valid_tokens=60, invalid_tokens=0, iterations=20)  # joined: 3 for 4 s
        batch(connection, "b", 8, 7.999, size=1)  # so short that it seems to end before it began
    assert read(database_url, T0, T0 + 10).mean_batch_size == pytest.approx((4 * 2 + 1 * 4 + 3 * 4) / (2 + 6))


def test_overlapping_batches_are_busy_time_once_and_only_while_the_worker_is_present(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        worker(connection, "a", 0, 100)  # present for all 10 s
        worker(connection, "b", 15, 100)  # for 5 s
        worker(connection, "gone", 0, 9)
        batch(connection, "a", 8, 12, size=1)  # 2 s of it in the window
        batch(connection, "a", 14, 17, size=1)
        batch(connection, "a", 15, 18, size=1)  # overlaps: 14 to 18 are 4 s
        batch(connection, "b", 16, 30, size=1)  # 4 s of it in the window
    seen = read(database_url, T0 + 10, T0 + 20)
    assert seen.workers == 2
    assert seen.worker_idle_share == pytest.approx(1 - (2 + 4 + 4) / 15)


def test_a_restarted_worker_was_present_while_its_earlier_process_served(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        worker(connection, "a", 18, 100)  # its second process
        batch(connection, "a", 12, 14, size=1)  # served by the first
        batch(connection, "a", 14, 19, size=1, status="lost")  # does not count as busy time
        batch(connection, "a", 18, 20, size=1)
    seen = read(database_url, T0 + 10, T0 + 20)
    assert seen.worker_idle_share == pytest.approx(1 - (2 + 2) / 8)  # present from 12 to 20


def test_an_empty_service_has_no_sizes_and_no_idle_share(database_url: str) -> None:
    seen = read(database_url)
    assert (seen.batches, seen.mean_batch_size, seen.worker_idle_share, seen.policy) == (0, None, None, None)
    assert seen.until - seen.since == pytest.approx(60, abs=1)
