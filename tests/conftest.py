"""The real Postgres and the real broker that integration tests run on: one of each a session, clean for every test.

`--postgres-url` and `--redis-url` name servers that run already: each run then has databases of its own names, which it
drops, and the whole of the Redis database that the URL names.
"""

import gc
import itertools
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import hypothesis
import psutil
import psycopg
import pytest
import redis
from psycopg import sql
from sqlalchemy import make_url
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

from cli.hosting.embedded_servers import create_database, embedded_broker, running_server
from models.schema_upgrade import upgrade
from tests.quick_postgres import quick_postgres

TEMPLATE = f"migrated_{os.getpid()}"
SERVERS_PREFIX = "magnus-test-"
MEMORY = Path("/dev/shm")  # Linux has it; elsewhere it does not exist
MEMORY_BYTES = 2 * 2**30  # the lane with the largest database, 220,000 requests, has 0.7 GB; two others run beside it
Administrator = psycopg.Connection[tuple[Any, ...]]
_numbers = itertools.count(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Servers in place of the embedded ones, the form of tests/chaos, the engines that tests/engines compares."""
    parser.addoption("--postgres-url", help="A Postgres whose role may create databases and roles.")
    parser.addoption("--redis-url", help="A Redis database that tests may empty.")
    parser.addoption("--chaos", default="few", choices=("few", "short", "long"), help="Promises of tests/chaos.")
    parser.addoption("--engines", default="ours,stub", help="Comma-separated kinds for tests/engines, or all.")


def pytest_configure() -> None:
    """Let hypothesis take its time, and hear the signals that nohup or a shell ignores for its children.

    What is imported while tests are collected is no garbage.
    """
    gc.disable()
    hypothesis.settings.register_profile("magnus", deadline=None)  # a busy machine is slow
    hypothesis.settings.load_profile("magnus")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_finish() -> None:
    """Keep modules and collected tests out of garbage collection, which took half of the set-up of an API test."""
    gc.freeze()
    gc.enable()


class ByService(LoadFileScheduling):  # type: ignore[misc]  # xdist is untyped
    """Gives all tests of a file to one lane, and those of tests/e2e to one, because they share a service of its own."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return "tests/e2e" if file.startswith("tests/e2e/") else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByService:
    """Divide the tests among the lanes of `make test`."""
    return ByService(config, log)


@pytest.fixture(scope="session")
def servers_dir() -> Iterator[Path]:
    """A short path (a Unix socket's may have 107 bytes) for the data of the session's servers."""
    prefix = f"{SERVERS_PREFIX}{os.getpid()}-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=_memory(), ignore_cleanup_errors=True) as directory:
        os.chmod(directory, 0o711)  # Postgres, which does not run as root, passes through it on any file system
        yield Path(directory)


def _memory() -> Path | None:
    """A directory in memory, if it is large enough: making and dropping a database takes a sixth of the time there.

    Removes what killed sessions left in it. None stands for the usual directory, as in a container with a small one.
    """
    if not os.access(MEMORY, os.W_OK):
        return None
    for left in MEMORY.glob(f"{SERVERS_PREFIX}*-*"):
        if not psutil.pid_exists(int(left.name.removeprefix(SERVERS_PREFIX).partition("-")[0])):
            shutil.rmtree(left, ignore_errors=True)
    return MEMORY if shutil.disk_usage(MEMORY).free > MEMORY_BYTES else None


@pytest.fixture(scope="session")
def postgres_url(servers_dir: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """The given Postgres, or one that is fast and forgets on power loss; with a template of the newest schema."""
    given = request.config.getoption("--postgres-url")
    embedded = None if given else quick_postgres(servers_dir / "postgres")
    with running_server(embedded, servers_dir / "postgres.log") if embedded else nullcontext(given) as url:
        template = with_database(url, TEMPLATE)
        create_database(template)
        upgrade(template)
        yield with_database(url, "postgres")
        with psycopg.connect(with_database(url, "postgres"), autocommit=True) as connection:
            _drop_database(connection, TEMPLATE)


@pytest.fixture(scope="session")
def administrator(postgres_url: str) -> Iterator[Administrator]:
    """The connection that makes and drops databases; for a connection of its own each would start a process."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def database_url(postgres_url: str, administrator: Administrator) -> Iterator[str]:
    """A fresh, migrated database, dropped after the test."""
    yield from _fresh_database(postgres_url, administrator)


@pytest.fixture(scope="module")
def module_database_url(postgres_url: str, administrator: Administrator) -> Iterator[str]:
    """A database that all tests of a module share, for those that leave nothing in it."""
    yield from _fresh_database(postgres_url, administrator)


def _fresh_database(postgres_url: str, administrator: Administrator) -> Iterator[str]:
    name = f"test_{os.getpid()}_{next(_numbers)}"
    # Where nothing waits for the disk, copying the files takes half the CPU time of copying their pages.
    durable = administrator.execute("show fsync").fetchone() == ("on",)
    strategy = sql.SQL("wal_log" if durable else "file_copy")
    create = sql.SQL("create database {} template {} strategy {}")
    administrator.execute(create.format(sql.Identifier(name), sql.Identifier(TEMPLATE), strategy))
    yield with_database(postgres_url, name)
    _drop_database(administrator, name)


def _drop_database(administrator: Administrator, name: str) -> None:
    administrator.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


@pytest.fixture(scope="session")
def redis_server_url(servers_dir: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """The given broker, or the session's, with whatever earlier tests left in it."""
    given = request.config.getoption("--redis-url")
    embedded = None if given else embedded_broker(servers_dir / "valkey")
    with running_server(embedded, servers_dir / "valkey.log") if embedded else nullcontext(given) as url:
        yield url


@pytest.fixture
def redis_url(redis_server_url: str) -> str:
    """The broker, emptied."""
    with redis.Redis.from_url(redis_server_url) as client:
        client.flushdb()
    return redis_server_url


def with_database(url: str, name: str) -> str:
    """The same server's URL with another database."""
    return make_url(url).set(database=name).render_as_string(hide_password=False)
