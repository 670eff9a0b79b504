"""Notifications of Postgres: whoever stores requests says so, and the predictors that listen look for them at once.

One that is lost costs the time until beat's next tick, nothing else.
"""

from typing import cast

from psycopg import Connection as PsycopgConnection
from sqlalchemy import Connection, Engine, text
from sqlalchemy.orm import Session

from models.session_settings import is_pooled

CHANNEL = "magnus_submitted"
# In one transaction of its own: the commit of a notification holds a lock that all of them share, so it must neither be
# a submission's commit nor wait for the disk.
NOTIFY = text(f"select set_config('synchronous_commit', 'off', true), pg_notify('{CHANNEL}', '')")


class Unheard(Exception):
    """A pooler is between us and Postgres."""


def notify_submitted(session: Session) -> None:
    """Say that requests were stored; the session commits each statement."""
    session.execute(NOTIFY)


class Submissions:
    """A connection that hears of each submission from now on; one thread waits on it."""

    def __init__(self, engine: Engine) -> None:
        """Raises SQLAlchemyError; Unheard if a pooler is in between, which passes no notifications on."""
        self._connection: Connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        if is_pooled(self._connection):
            self.close()
            raise Unheard
        self._connection.exec_driver_sql(f"listen {CHANNEL}")

    def wait(self, within_s: float) -> bool:
        """Return soon after one came, with all that came by then; False if none came. Raises psycopg.Error."""
        connection = cast(PsycopgConnection[object], self._connection.connection.driver_connection)
        return bool(list(connection.notifies(timeout=within_s, stop_after=1)))

    def close(self) -> None:
        """Close the connection rather than give it back to the pool, where it would go on listening."""
        self._connection.invalidate()
        self._connection.close()
