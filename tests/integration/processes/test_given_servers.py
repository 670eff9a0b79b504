"""Servers that run already, as the promises use them: every service gets a database of its own, dropped behind it."""

import psycopg
import pytest
import redis

from benchmarks.chaos.servers import GivenServers


def test_each_use_has_an_empty_database_and_broker_and_leaves_none(postgres_url: str, redis_url: str):
    given = GivenServers(postgres_url, redis_url)
    with redis.Redis.from_url(redis_url) as broker:
        broker.set("left", "behind")
        with given.for_one_service() as first, given.for_one_service() as second:
            assert broker.dbsize() == 0
            assert first["MAGNUS_REDIS_URL"] == redis_url
            assert first["MAGNUS_DATABASE_URL"] != second["MAGNUS_DATABASE_URL"]
            with psycopg.connect(first["MAGNUS_DATABASE_URL"]) as connection:
                connection.execute("create table mine (id int)")
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(first["MAGNUS_DATABASE_URL"])
