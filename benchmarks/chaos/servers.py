"""Postgres and broker for services under test: servers that run already, or servers that belong to the benchmark."""

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import redis
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import make_url

from benchmarks.service_start import running
from cli.hosting.embedded_servers import create_database, embedded_broker, embedded_postgres

_numbers = itertools.count(1)


@dataclass(frozen=True)
class GivenServers:
    """The URLs of servers that run already; the role may create databases, and the Redis database may be emptied."""

    postgres_url: str
    redis_url: str

    @contextmanager
    def for_one_service(self) -> Iterator[dict[str, str]]:
        """Create a database and empty the broker; yields a service's settings, and drops the database at the end."""
        name = f"chaos_{os.getpid()}_{next(_numbers)}"
        url = make_url(self.postgres_url).set(database=name).render_as_string(hide_password=False)
        create_database(url)
        with redis.Redis.from_url(self.redis_url) as broker:
            broker.flushdb()
        try:
            yield {"MAGNUS_DATABASE_URL": url, "MAGNUS_REDIS_URL": self.redis_url}
        finally:
            with psycopg.connect(self.postgres_url, autocommit=True) as connection:
                connection.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


@dataclass(frozen=True)
class OwnServers:
    """The addresses of the Postgres and the broker of one service under test."""

    database_url: str
    postgres_socket: str
    redis_url: str
    redis_port: int

    def behind(self, postgres_port: int, redis_port: int) -> dict[str, str]:
        """The settings of a service that reaches both servers through proxies on these ports."""
        redis = urlsplit(self.redis_url)
        return {
            "MAGNUS_DATABASE_URL": f"postgresql://postgres@127.0.0.1:{postgres_port}/magnus",
            "MAGNUS_REDIS_URL": f"redis://:{redis.password}@127.0.0.1:{redis_port}{redis.path}",
        }


@contextmanager
def own_servers(directory: Path) -> Iterator[OwnServers]:
    """Run both servers with an empty database until the context ends."""
    postgres, broker = embedded_postgres(directory / "postgres"), embedded_broker(directory / "valkey")
    with running(postgres.program, directory / "postgres.log"), running(broker.program, directory / "valkey.log"):
        create_database(postgres.url)
        socket = f"{conninfo_to_dict(postgres.url)['host']}/.s.PGSQL.5432"
        yield OwnServers(postgres.url, socket, broker.url, urlsplit(broker.url).port or 0)
