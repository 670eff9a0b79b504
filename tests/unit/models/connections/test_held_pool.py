"""A pool whose connections are all in use, and that gives none for long, is held by those that use them."""

import pytest
from sqlalchemy import QueuePool, create_engine
from sqlalchemy.exc import OperationalError

from models.connections.held_pool import PoolWatch


def test_a_pool_is_held_since_its_last_connection_until_one_is_free() -> None:
    now = 100.0
    engine = create_engine("sqlite://", poolclass=QueuePool, pool_size=2, max_overflow=0)
    watch = PoolWatch(engine, lambda: now)
    with engine.connect():
        now = 200.0
        assert watch.held_s() == 0
        with engine.connect():
            now = 261.0
            assert watch.held_s() == 61
        assert watch.held_s() == 0
        with engine.connect():
            assert watch.held_s() == 0
    engine.dispose()


def test_a_pool_that_gets_no_connection_from_the_database_is_held_by_nobody() -> None:
    now = 100.0
    engine = create_engine("sqlite:////nowhere/at/all", poolclass=QueuePool, pool_size=1, max_overflow=0)
    watch = PoolWatch(engine, lambda: now)
    now = 200.0
    with pytest.raises(OperationalError):
        engine.connect()
    assert watch._given_at == 200
    engine.dispose()
