"""Postgres notifications of stored and ended requests; a process that misses one polls each second or at each tick."""

import math
from collections.abc import Sequence
from time import monotonic
from typing import cast

import psycopg
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from models.connections.session import is_pooled
from models.connections.sql import run
from models.planner_state import write_service_state

SUBMITTED, ENDED = "magnus_submitted", "magnus_ended"  # channels of Postgres's NOTIFY
ERRORS = (SQLAlchemyError, psycopg.Error)  # what Notifications raises while Postgres is unreachable
MOST_IDS = 200  # ids in one notification, which may carry 8,000 bytes; an id has 37
# A notification is sent in a transaction of its own: its commit holds a lock that all notifications share. The commit
# must therefore not be that of a submission, and must not wait for the disk.
NOTIFY = "select set_config('synchronous_commit', 'off', true), pg_notify(:channel, :payload)"

# Ends of requests are notified only while a web process listens, because each notification is a transaction of its own.
# A web process that listens writes a row every SAY_EVERY_S, and processes notify until that row is AWAITED_S old. A
# longer AWAITED_S makes them notify longer after the last web process has gone; a shorter SAY_EVERY_S costs more
# writes. Not tuned.
AWAITED = "awaited"  # the listener's row of `service_state`
AWAITED_S, SAY_EVERY_S = 15.0, 5.0


class NotificationsUnavailable(Exception):
    """A connection pooler is between us and Postgres, and passes no notifications on."""


def notify_submitted(connection: Connection) -> None:
    """Notifies predictors that requests were stored, once the connection commits."""
    run(connection, NOTIFY, {"channel": SUBMITTED, "payload": ""})


def notify_ended(connection: Connection, ids: Sequence[str]) -> None:
    """Notifies web processes that these requests may have ended; to be called after the commit that ended them."""
    for start in range(0, len(ids), MOST_IDS):
        run(connection, NOTIFY, {"channel": ENDED, "payload": " ".join(ids[start : start + MOST_IDS])})


class Notifications:
    """A connection that hears every notification of one channel from now on; one thread waits on it."""

    def __init__(self, engine: Engine, channel: str, *, awaited: bool = False) -> None:
        """Subscribes; with `awaited` it calls `say_awaited`, too. Raises SQLAlchemyError, NotificationsUnavailable."""
        self._connection: Connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        if is_pooled(self._connection):
            self.close()
            raise NotificationsUnavailable
        self._connection.exec_driver_sql(f"listen {channel}")
        self._say_at = 0.0 if awaited else math.inf
        self._say_if_due()

    def say_awaited(self) -> None:
        """Asks all processes to notify ends of requests for the next AWAITED_S."""
        write_service_state(self._connection, AWAITED, {})
        self._say_at = monotonic() + SAY_EVERY_S

    def _say_if_due(self) -> None:
        if monotonic() >= self._say_at:
            self.say_awaited()

    def wait(self, within_s: float) -> list[str]:
        """Returns the next payloads, or [] if none comes within `within_s`; raises psycopg.Error, SQLAlchemyError."""
        self._say_if_due()
        connection = cast(psycopg.Connection[object], self._connection.connection.driver_connection)
        return [heard.payload for heard in connection.notifies(timeout=within_s, stop_after=1)]

    def close(self) -> None:
        """Closes the connection instead of giving it back to the pool, where it would go on listening."""
        self._connection.invalidate()
        self._connection.close()
