"""Lets the first statement of each transaction behind a pooler apply the settings on which Magnus relies.

A pooler gives a transaction any server connection, with whatever another client left in its session: `pg_dump` leaves
an empty search path, on which no table of ours is found. The settings go in the same round trip as the statement.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.sql import SQL, Literal

# The session's path if our tables are on it, as after pgbouncer.ini's `connect_query`, else the role's or database's.
SEARCH_PATH = """
    select case when to_regclass('alembic_version') is null then reset_val else setting end
    from pg_settings where name = 'search_path'
"""


class PooledCursor(psycopg.Cursor[Any]):
    """A cursor that applies `settings` before a statement that begins a transaction, as each does with autocommit."""

    def __init__(self, *args: Any, settings: bytes, **kwargs: Any) -> None:
        """`settings` is a statement that applies the settings to one transaction."""
        super().__init__(*args, **kwargs)
        self._settings = settings

    def execute(self, *args: Any, **kwargs: Any) -> "PooledCursor":
        """Executes a statement as psycopg does."""
        if self.connection.info.transaction_status != TransactionStatus.IDLE:
            return super().execute(*args, **kwargs)
        with self.connection.pipeline():  # for Postgres, both statements are one transaction, also with autocommit
            psycopg.Cursor(self.connection).execute(self._settings)
            return super().execute(*args, **kwargs)

    def executemany(self, *args: Any, **kwargs: Any) -> None:
        """Executes a statement for each set of parameters as psycopg does, after applying the settings once."""
        with self.connection.pipeline():
            psycopg.Cursor(self.connection).execute(self._settings)
            super().executemany(*args, **kwargs)


def bring_settings(connection: "psycopg.Connection[Any]", settings: Mapping[str, str]) -> None:
    """Lets each transaction of this connection apply its search path and these settings; prepares no statements."""
    found = connection.execute(SEARCH_PATH).fetchone()
    values = {**settings, "search_path": found[0]} if found else settings
    each = (SQL("set_config({}, {}, true)").format(Literal(name), Literal(value)) for name, value in values.items())
    statement = SQL("select ") + SQL(", ").join(each)
    connection.prepare_threshold = None
    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    connection.cursor_factory = partial(PooledCursor, settings=statement.as_bytes(connection))  # type: ignore[assignment]
