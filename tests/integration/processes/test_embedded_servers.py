"""The embedded servers: what they keep, who reaches them, what they leave behind."""

import os
import stat
from pathlib import Path

import psutil
import psycopg
import redis

from cli.hosting.embedded_servers import create_database, embedded_broker, embedded_postgres, running_server
from tests.quick_postgres import quick_postgres


def test_postgres_keeps_its_data_over_a_restart(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running_server(embedded_postgres(tmp_path / "pg"), log) as url:
        create_database(url)
        with psycopg.connect(url) as connection:
            connection.execute("create table kept as select 7 as value")
    with running_server(embedded_postgres(tmp_path / "pg"), log) as url, psycopg.connect(url) as connection:
        assert connection.execute("select value from kept").fetchone() == (7,)


def test_a_path_too_long_for_a_socket_gets_a_short_one_elsewhere(tmp_path: Path) -> None:
    long = tmp_path / ("a" * 120)
    long.mkdir()
    with running_server(quick_postgres(long / "pg"), tmp_path / "log") as url:
        create_database(url)
        with psycopg.connect(url) as connection:
            assert connection.execute("select 1").fetchone() == (1,)


def test_only_its_user_can_enter_the_socket_directory(tmp_path: Path) -> None:
    server = quick_postgres(tmp_path / "pg")
    sockets = Path(server.url.partition("host=")[2])
    assert stat.S_IMODE(sockets.stat().st_mode) == 0o700


def test_the_broker_keeps_messages_over_a_restart_and_never_evicts(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running_server(embedded_broker(tmp_path / "valkey"), log) as url, redis.Redis.from_url(url) as client:
        client.set("kept", "7")
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
    with running_server(embedded_broker(tmp_path / "valkey"), log) as url, redis.Redis.from_url(url) as client:
        assert client.get("kept") == b"7"


def test_nothing_runs_once_the_servers_are_stopped(tmp_path: Path) -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with (
        running_server(quick_postgres(tmp_path / "pg"), tmp_path / "log"),
        running_server(embedded_broker(tmp_path / "valkey"), tmp_path / "log"),
    ):
        during = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    assert len(during) > 2
    _, alive = psutil.wait_procs(during, timeout=10)  # those of Postgres end by themselves, shortly after it
    assert not alive


def test_a_lock_whose_process_id_belongs_to_another_program_does_not_keep_postgres_from_starting(
    tmp_path: Path,
) -> None:
    quick_postgres(tmp_path / "pg")
    lock = tmp_path / "pg" / "data" / "postmaster.pid"
    lock.write_text(f"{os.getppid()}\n{lock.parent}\n")
    with running_server(quick_postgres(tmp_path / "pg"), tmp_path / "log"):
        quick_postgres(tmp_path / "pg")
        assert lock.exists()  # that of a Postgres that runs in this directory stays
