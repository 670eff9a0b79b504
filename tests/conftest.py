"""The real Postgres and the real broker that integration tests run on: one of each a session, clean for every test."""

import itertools
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import redis
from psycopg import sql

from cli.hosting.embedded_broker import embedded_broker
from cli.hosting.embedded_postgres import create_database, embedded_postgres
from cli.hosting.embedded_server import running_server
from models.schema_upgrade import upgrade

TEMPLATE = "migrated"
_numbers = itertools.count(1)


def pytest_configure() -> None:
    """Hear signals that whoever started the suite ignores (nohup, a shell's background): children inherit deafness."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session")
def servers_dir() -> Iterator[Path]:
    """A short path (a Unix socket's may have 107 bytes) for the data of the session's servers."""
    with tempfile.TemporaryDirectory(prefix="magnus-test-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


@pytest.fixture(scope="session")
def postgres_url(servers_dir: Path) -> Iterator[str]:
    """A Postgres that forgets on power loss and is fast for it; its database `migrated` is the newest schema."""
    with running_server(
        embedded_postgres(servers_dir / "postgres", durable=False), servers_dir / "postgres.log"
    ) as url:
        template = with_database(url, TEMPLATE)
        create_database(template)
        upgrade(template)
        yield with_database(url, "postgres")


@pytest.fixture
def database_url(postgres_url: str) -> Iterator[str]:
    """A fresh, migrated database, dropped after the test."""
    yield from _fresh_database(postgres_url)


@pytest.fixture(scope="module")
def module_database_url(postgres_url: str) -> Iterator[str]:
    """A database that all tests of a module share, for those that leave nothing in it."""
    yield from _fresh_database(postgres_url)


def _fresh_database(postgres_url: str) -> Iterator[str]:
    name = f"test_{os.getpid()}_{next(_numbers)}"
    url = with_database(postgres_url, name)
    create_database(url, template=TEMPLATE)
    yield url
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


@pytest.fixture(scope="session")
def redis_server_url(servers_dir: Path) -> Iterator[str]:
    """The session's broker, with whatever earlier tests left in it."""
    with running_server(embedded_broker(servers_dir / "valkey"), servers_dir / "valkey.log") as url:
        yield url


@pytest.fixture
def redis_url(redis_server_url: str) -> str:
    """The broker, emptied."""
    with redis.Redis.from_url(redis_server_url) as client:
        client.flushall()
    return redis_server_url


def with_database(url: str, name: str) -> str:
    """The same server's URL with another database."""
    start, rest = url.split("@/", 1)
    return f"{start}@/{name}?{rest.partition('?')[2]}"
