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

from cli.hosting.child_process import start, stop
from cli.hosting.embedded_broker import embedded_broker
from cli.hosting.embedded_postgres import create_database, embedded_postgres
from cli.hosting.readiness import await_ready

_numbers = itertools.count(1)


@dataclass(frozen=True)
class GivenServers:
    """Their URLs; the Postgres role may create databases, and the Redis database may be emptied."""

    postgres_url: str
    redis_url: str

    @contextmanager
    def used_once(self) -> Iterator[dict[str, str]]:
        """The settings of a service that uses both; its database is dropped at the end."""
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
    """Where they answer."""

    database_url: str
    postgres_socket: str
    redis_url: str
    redis_port: int

    def behind(self, postgres_port: int, redis_port: int) -> dict[str, str]:
        """Settings of a service that reaches both through proxies on these ports."""
        redis = urlsplit(self.redis_url)
        return {
            "MAGNUS_DATABASE_URL": f"postgresql://postgres@127.0.0.1:{postgres_port}/magnus",
            "MAGNUS_REDIS_URL": f"redis://:{redis.password}@127.0.0.1:{redis_port}{redis.path}",
        }


@contextmanager
def own_servers(directory: Path) -> Iterator[OwnServers]:
    """Start both with an empty database, stop them at the end."""
    servers = [embedded_postgres(directory / "postgres"), embedded_broker(directory / "valkey")]
    running = []
    try:
        for server in servers:
            log = directory / f"{server.program.name}.log"
            running.append((server.program, start(server.program, log)))
            await_ready(*running[-1], log)
        postgres, broker = (server.url for server in servers)
        create_database(postgres)
        socket = f"{conninfo_to_dict(postgres)['host']}/.s.PGSQL.5432"
        yield OwnServers(postgres, socket, broker, urlsplit(broker).port or 0)
    finally:
        stop(*reversed(running))
