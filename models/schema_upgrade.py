"""Upgrades the database's schema, and grants rights on it."""

from collections.abc import Callable, Sequence
from functools import partial

from alembic import command
from alembic.config import Config
from psycopg.errors import LockNotAvailable
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_fixed

from models.connections.schema_state import MIGRATIONS, known_revisions, schema_state
from models.connections.session import make_engine
from models.connections.sql import text
from models.planner_state import write_service_state

# "magn" in ASCII; any value that no other advisory lock of the database has works. With the lock, hosts that start at
# the same time upgrade one after the other.
UPGRADE_LOCK = 0x6D61676E
# A migration waits for a lock for at most LOCK_WITHIN_S; meanwhile every call that uses the table waits, too. This is
# less than the 2 s of the web process's statements. Calls go on in the pauses between tries. Not tuned otherwise.
LOCK_WITHIN_S, PAUSE_S, TRIES = 1.0, 2.0, 20
OPEN_TRANSACTIONS = text("""
    select format('process %s (%s) for %s s', pid, coalesce(nullif(application_name, ''), usename),
        round(extract(epoch from clock_timestamp() - xact_start)))
    from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()
        and xact_start < clock_timestamp() - interval '1 second'
    order by xact_start limit 3
""")
# Whether the baseline's newest column is there; for a database without a revision, as after a dump of the tables alone.
IS_UNTAGGED_BASELINE = text("""
    select exists (select from information_schema.columns
        where table_schema = current_schema() and table_name = 'workers' and column_name = 'shared_tokens')
""")
# The oldest migration whose code still works with the newest schema. A migration that breaks older code (because it
# drops or renames something, or adds a column that must be given) puts its own name here.
OLDEST_CODE = "0039"


class UnusableSchema(Exception):
    """This version can neither use nor change the database's schema; the message has the remedy."""


def upgrade(url: str, revision: str = "head") -> None:
    """Runs the missing migrations, each in a transaction of its own; several hosts may call it at once.

    Does not change a newer schema with which this version can work. Raises UnusableSchema.
    """
    for known in known_revisions():
        if revision == "head" or known <= revision:
            _change_schema(url, partial(_upgrade_to, revision=known))


def _upgrade_to(connection: Connection, revision: str) -> None:
    state = schema_state(connection)
    if state.revision is not None and not state.known:
        if state.problem is not None:
            raise UnusableSchema(state.problem)
        return
    if state.revision is None and connection.scalar(IS_UNTAGGED_BASELINE):
        command.stamp(alembic_config(connection), known_revisions()[0])
    elif state.revision is None or state.revision < revision:
        command.upgrade(alembic_config(connection), revision)
    write_service_state(connection, "schema", {"serves_code_since": OLDEST_CODE})


def downgrade(url: str, revision: str) -> None:
    """Undoes the migrations after `revision` and drops what they added; raises UnusableSchema if tables stay locked."""
    _change_schema(url, lambda connection: command.downgrade(alembic_config(connection), revision))


def _change_schema(url: str, change: Callable[[Connection], None]) -> None:
    """Calls `change` in a transaction, for one host at a time; tries again if other sessions hold locks it needs."""
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


def server_version(connection: Connection) -> int:
    """Returns the server's major version."""
    return int(connection.execute(text("select current_setting('server_version_num')::int / 10000")).scalar_one())


HELD_TOO_LONG_S = 300  # age of an idle transaction; no statement of ours takes as long, a backup is `active`. Not tuned
HAZARDS = """
    select format('process %s (%s) holds a transaction open for %s min and does nothing, so that rows stay locked and '
        'dead ones are kept; end it: select pg_terminate_backend(%s)', pid, coalesce(nullif(application_name, ''),
        usename), floor(extract(epoch from clock_timestamp() - xact_start) / 60), pid)
    from pg_stat_activity where datname = current_database() and state like 'idle in transaction%'
        and xact_start <= clock_timestamp() - make_interval(secs => :held_s)
    union all
    select format('the prepared transaction %L of %s is open since %s, so that rows stay locked and dead ones are '
        'kept; end it: rollback prepared %L', gid, owner, to_char(prepared, 'YYYY-MM-DD HH24:MI'), gid)
    from pg_prepared_xacts where database = current_database()
        and prepared <= clock_timestamp() - make_interval(secs => :held_s)
"""
COLLATION = """
    union all
    select format('the collation of the database changed from version %s to %s, so that its indexes of texts may miss '
        'rows; run: reindex database %I, then alter database %I refresh collation version', datcollversion,
        pg_database_collation_actual_version(oid), datname, datname)
    from pg_database where datname = current_database() and datcollversion <> pg_database_collation_actual_version(oid)
"""


def hazards(connection: Connection, held_s: float = HELD_TOO_LONG_S) -> list[str]:
    """Returns a sentence for each danger to the database: transactions that nobody ends, indexes that may be wrong."""
    # Postgres records the version of a database's collation from release 15 on
    found = connection.execute(
        text(HAZARDS + (COLLATION if server_version(connection) >= 15 else "")), {"held_s": held_s}
    )
    return list(found.scalars())


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
    # for the tables that the same owner's later migrations create
    "alter default privileges in schema %3$I grant select, insert, update, delete on tables to %1$I",
    "alter default privileges in schema %3$I grant usage, select on sequences to %1$I",
)


def grant_rights(connection: Connection, role: str) -> bool:
    """Lets `role` run the service, and creates a missing role without a password; returns whether it created one."""
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
