"""Upgrades the database's schema, and grants rights on it."""

from collections.abc import Callable, Sequence

from alembic import command
from alembic.config import Config
from psycopg.errors import LockNotAvailable
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_fixed

from models.connections.schema_state import MIGRATIONS, schema_state
from models.planning.planner_state import write_service_state
from models.session import make_engine
from models.sql import text

# "magn" in ASCII; any value that no other advisory lock of the database has works. With the lock, hosts that start at
# the same time upgrade one after the other.
UPGRADE_LOCK = 0x6D61676E
# Longest wait of a migration for a lock. Behind it, every call that uses the table waits, too, for at most as long: the
# web process gives its statements 2 s. Calls are answered in the pauses between the tries. Not tuned otherwise.
LOCK_WITHIN_S, PAUSE_S, TRIES = 1.0, 2.0, 20
OPEN_TRANSACTIONS = text("""
    select format('process %s (%s) for %s s', pid, coalesce(nullif(application_name, ''), usename),
        round(extract(epoch from clock_timestamp() - xact_start)))
    from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()
        and xact_start < clock_timestamp() - interval '1 second'
    order by xact_start limit 3
""")
# The oldest migration whose code still works with the newest schema. A migration that breaks older code (because it
# drops or renames something, or adds a column that must be given) puts its own name here.
OLDEST_CODE = "0006"


class UnusableSchema(Exception):
    """This version can neither use nor change the database's schema; the message has the remedy."""


def upgrade(url: str, revision: str = "head") -> None:
    """Runs the missing migrations, also at several calls at once; raises UnusableSchema.

    Leaves a newer schema that serves this version as it is.
    """

    def change(connection: Connection) -> None:
        state = schema_state(connection)
        if state.revision is not None and not state.known:
            if state.problem is not None:
                raise UnusableSchema(state.problem)
            return
        command.upgrade(alembic_config(connection), revision)
        write_service_state(connection, "schema", {"serves_code_since": OLDEST_CODE})

    _change_schema(url, change)


def downgrade(url: str, revision: str) -> None:
    """Undoes the migrations after `revision`, with what they added; raises UnusableSchema while tables are locked."""
    _change_schema(url, lambda connection: command.downgrade(alembic_config(connection), revision))


def _change_schema(url: str, change: Callable[[Connection], None]) -> None:
    """Calls `change` in a transaction, again while other sessions have locks that it needs; one host at a time."""
    engine = make_engine(url, answer_within_s=None, pool_size=1, name="magnus migrate")
    tries = Retrying(
        retry=retry_if_exception(_is_locked), wait=wait_fixed(PAUSE_S), stop=stop_after_attempt(TRIES), reraise=True
    )
    try:
        for attempt in tries:
            with attempt, engine.begin() as connection:
                connection.execute(text("select pg_advisory_xact_lock(:lock)"), {"lock": UPGRADE_LOCK})
                connection.exec_driver_sql(f"set local lock_timeout = '{LOCK_WITHIN_S:g}s'")
                change(connection)
    except OperationalError as error:
        if not _is_locked(error):
            raise
        with engine.connect() as connection:
            sessions = "; ".join(map(str, connection.scalars(OPEN_TRANSACTIONS)))
        raise UnusableSchema(
            f"other sessions keep tables locked that the migration changes; nothing was changed in {TRIES} tries. "
            f"Oldest transactions: {sessions or 'none any more'}. Wait for them, as for a pg_dump, or end them with "
            "pg_terminate_backend; then run `magnus migrate` again"
        ) from error
    finally:
        engine.dispose()


def _is_locked(error: BaseException) -> bool:
    return isinstance(error, OperationalError) and isinstance(error.orig, LockNotAvailable)


def server_facts(connection: Connection) -> tuple[int, str]:
    """Returns the server's major version and the statement timeout ("0": none)."""
    row = connection.execute(
        text("""
            select current_setting('server_version_num')::int / 10000, current_setting('statement_timeout')
        """)
    ).one()
    return (row[0], row[1])


def alembic_config(connection: Connection) -> Config:
    """Returns Alembic's configuration for its commands on this connection."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


# Formats for Postgres's format(), which quotes the names: %1$I is the role, %2$I the database, %3$I the schema.
GRANTS = (
    "grant connect on database %2$I to %1$I",
    "grant usage on schema %3$I to %1$I",
    "grant select, insert, update, delete on all tables in schema %3$I to %1$I",
    "grant usage, select on all sequences in schema %3$I to %1$I",
    # for tables of later migrations, run by the same owner
    "alter default privileges in schema %3$I grant select, insert, update, delete on tables to %1$I",
    "alter default privileges in schema %3$I grant usage, select on sequences to %1$I",
)


def grant_rights(connection: Connection, role: str) -> bool:
    """Lets `role` run the service, creating it without a password if there is none; returns whether it did."""
    made = connection.scalar(text("select 1 from pg_roles where rolname = :role"), {"role": role}) is None
    for statement in ("create role %1$I login", *GRANTS) if made else GRANTS:
        quoted = connection.scalar(
            text("select format(cast(:statement as text), cast(:role as text), current_database(), current_schema())"),
            {"statement": statement, "role": role},
        )
        connection.exec_driver_sql(str(quoted))
    return made


def unreadable_tables(connection: Connection) -> Sequence[str]:
    """Returns the tables of the schema that this connection's role may not read."""
    return connection.scalars(
        text("""
            select tablename from pg_tables where schemaname = current_schema() and tablename <> 'alembic_version'
                and not has_table_privilege(format('%I.%I', schemaname, tablename), 'select')
        """)
    ).all()
