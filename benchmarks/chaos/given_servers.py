"""A Postgres and a broker that run already: each service under test gets a database of its own and the broker empty."""

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
import redis
from psycopg import sql
from sqlalchemy import make_url

from cli.hosting.embedded_postgres import create_database

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
