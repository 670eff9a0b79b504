"""Checks whether Postgres allows all connections that the processes of the service may keep open."""

from collections.abc import Mapping

from sqlalchemy import Connection

from models.connections.session import is_pooled
from models.connections.sql import text

# Most connections of a process of each kind; docs/operations/scale.md says what each is for.
MOST_OF = {"web": 13, "planner": 2, "predictor": 3, "chores": 4, "trainer": 4, "beat": 1, "worker": 8}
FOR_COMMANDS = 3  # connections for commands such as `magnus doctor` and pg_dump. Not tuned.


def connection_shortage(connection: Connection, processes: Mapping[str, int]) -> str | None:
    """Returns why Postgres may refuse connections to these numbers of processes by kind, or None if there are enough.

    A pooler has connections of its own, so no shortage shows behind it.
    """
    if is_pooled(connection):
        return None
    needed = FOR_COMMANDS + sum(MOST_OF.get(kind, 1) * number for kind, number in processes.items())
    left = connection.execute(
        text("""
            select least(
                current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
                    - coalesce(nullif(current_setting('reserved_connections', true), ''), '0')::int
                    - (select count(*) from pg_stat_activity where datid is not null
                        and (usename is distinct from current_user or application_name not like 'magnus %')),
                (select nullif(rolconnlimit, -1) from pg_roles where rolname = current_user),
                (select nullif(datconnlimit, -1) from pg_database where datname = current_database())
            )
        """)
    ).scalar_one()
    if left >= needed:
        return None
    return (
        f"Postgres leaves {left} connections to Magnus, whose processes keep up to {needed}, so some calls get 503; "
        "raise max_connections, or the limit of the role or database, or put PgBouncer in between"
    )
