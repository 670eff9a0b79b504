"""Settings of a database session, on a direct connection and behind a pooler such as PgBouncer in transaction mode.

A pooler gives each transaction another server connection: settings of the session would reach somebody else's
statements, prepared statements would be unknown, and start-up options are refused. So behind one nothing outlives a
transaction but the time zone, which PgBouncer itself carries over.
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Engine, event

POOLED = "pooled"  # in a connection's info: whether a pooler is between us and Postgres


def apply_session_settings(engine: Engine, settings: Mapping[str, str]) -> None:
    """Give each new connection these settings, or, behind a pooler, each transaction.

    With autocommit there are no transactions: behind a pooler such an engine has none of them.
    """
    columns = ", ".join(f"set_config('{name}', '{value}', {{local}})" for name, value in settings.items())
    of_session, of_transaction = (f"select {columns.format(local=local)}" for local in ("false", "true"))

    @event.listens_for(engine, "connect")
    def connected(connection: Any, record: Any) -> None:
        autocommit, connection.autocommit = connection.autocommit, True
        connection.execute("set timezone to 'UTC'")
        # A pooler answers the start of a session itself, with a number of its own in place of the server process's.
        (server_pid,) = connection.execute("select pg_backend_pid()").fetchone()
        record.info[POOLED] = server_pid != connection.info.backend_pid
        if record.info[POOLED]:
            connection.prepare_threshold = None
        elif settings:
            connection.execute(of_session)
        connection.autocommit = autocommit

    @event.listens_for(engine, "begin")
    def begun(connection: Connection) -> None:
        if settings and connection.info[POOLED] and connection.get_isolation_level() != "AUTOCOMMIT":
            connection.exec_driver_sql(of_transaction)


def is_pooled(connection: Connection) -> bool:
    """Whether a pooler is between this connection and Postgres."""
    return bool(connection.info[POOLED])
