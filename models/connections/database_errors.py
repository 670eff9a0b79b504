"""Turns database errors into one line with the remedy for operators, without values that clients sent.

Postgres quotes values in its messages (`invalid input syntax for type integer: "..."`) and whole rows in their details,
and messages reach the logs.
"""

import psycopg
from sqlalchemy import Engine, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError

from models.connections.bounded_connection import StatementTooSlow

URL = "MAGNUS_DATABASE_URL"
# The sentences, with the remedy, by which every page and command reports a database that answers and stores nothing.
NO_WRITES = f"Postgres takes no writes; give {URL} the primary's address, or turn default_transaction_read_only off"
DISK_FULL = "Postgres has no disk space left; free some, or enlarge its disk"
GRANT = "let the owner of the tables run `magnus migrate --grant ROLE` for the role of " + URL
# Remedies by a part of the server's or libpq's message; the first part that occurs in the message counts.
REMEDIES = {
    "password authentication failed": f"check user and password in {URL}",
    "no password supplied": f"give the password in {URL}",
    "no pg_hba.conf entry": f"let pg_hba.conf admit this host and role, or correct {URL}",
    "does not support ssl": f"take sslmode out of {URL}, or turn SSL on at the server",
    "unsupported startup parameter": f"PgBouncer refuses start-up options: take `options` out of "
    f"{URL} and give them to the role (`alter role … set search_path = …`)",
    "not allowed to connect": f"grant connect on the database to the role of {URL}",
    "permission denied for database": f"grant connect on the database to the role of {URL}",
    "permission denied": GRANT,
    "must be owner": GRANT,
    "encoding is": "create another with `create database NAME encoding 'UTF8' template template0`",
    "no schema has been selected": "create the schema that search_path names, or correct search_path",
    "invalid connection option": f"correct the part behind the `?` of {URL}",
    "invalid dsn": f"correct {URL}",
    "invalid port": f"correct the port in {URL}",
    "no space left": "free space on the disk of Postgres",
    "too many": "raise max_connections, or stop what holds the connections",
    "remaining connection slots": "raise max_connections, or stop what holds the connections",
    "recovery mode": "wait until Postgres has recovered",
    "starting up": "wait until Postgres has started",
    "does not exist": f"create the database or role, or correct {URL}",
}
OTHERWISE = f"check host and port in {URL}, and that the server runs"
READ_ONLY = "25006"  # the server has become a stand-by, or an administrator keeps it from being written to
STORES_NOTHING = {READ_ONLY: NO_WRITES, "53100": DISK_FULL}  # by SQLSTATE
# The errors of a schema of another version and of a role without rights; only an operator can mend either.
UNFIT = (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn, psycopg.errors.InsufficientPrivilege)


def explain(error: SQLAlchemyError | psycopg.Error) -> str:
    """Returns the first line of the server's message with the remedy, or the sentence of why nothing is stored."""
    if (told := why_nothing_is_stored(error)) is not None:
        return told
    original = error.orig if isinstance(error, DBAPIError) else error
    message = next(iter(str(original).strip().splitlines()), type(original).__name__)
    if isinstance(original, psycopg.errors.UndefinedTable | psycopg.errors.UndefinedColumn):
        return f"no tables of this version are found ({message}); run `magnus migrate`, or mend search_path"
    lowered = str(original).lower()
    remedy = next((remedy for part, remedy in REMEDIES.items() if part in lowered), OTHERWISE)
    return f"the database refuses: {message}; {remedy}"


def why_nothing_is_stored(error: BaseException) -> str | None:
    """Returns NO_WRITES or DISK_FULL for an error of such a database, and None for any other."""
    return STORES_NOTHING.get(getattr(error.orig if isinstance(error, DBAPIError) else error, "sqlstate", None) or "")


# Classes of SQLSTATE that say nothing about the statement: connection, rollback, resources, operator, system.
PASSING = {"08", "40", "53", "57", "58"}
STATEMENT_CANCELLED = "57014"  # by a person or by a time-out; a statement that exceeded it may exceed it each time


def is_away(error: BaseException) -> bool:
    """Returns whether the database could not be reached or could not work, so that the statement may succeed later."""
    state = getattr(error.orig, "sqlstate", None) if isinstance(error, DBAPIError) else None
    passing = state is not None and state[:2] in PASSING and state != STATEMENT_CANCELLED
    return passing or state == READ_ONLY or is_unreachable(error)


def is_unreachable(error: BaseException) -> bool:
    """Returns whether there was no connection to the database, or no answer from it to any statement."""
    if not isinstance(error, DBAPIError) or isinstance(error.orig, StatementTooSlow):
        return False
    if (state := getattr(error.orig, "sqlstate", None)) is not None:
        return str(state).startswith("08")
    return isinstance(error, OperationalError) or error.connection_invalidated


def is_unfit(error: BaseException) -> bool:
    """Returns whether tables or rights do not fit, so that the statement succeeds once an operator has mended them."""
    return isinstance(error, DBAPIError) and isinstance(error.orig, UNFIT)


def lacks_resources(error: BaseException) -> bool:
    """Returns whether a server that answers lacks disk, memory or connections, or whether its file system fails."""
    state: str | None = getattr(getattr(error, "orig", None), "sqlstate", None)
    return state is not None and state[:2] in {"53", "58"}


# Classes of SQLSTATE whose primary message names servers, tables, columns and constraints, never a value: connection,
# transaction state, integrity, invalid credentials, rollback, names and rights, resources, state, operator, system.
CLASSES_WITHOUT_VALUES = {"08", "23", "25", "28", "3D", "3F", "40", "42", "53", "54", "55", "57", "58"}


def hide_values(engine: Engine) -> None:
    """Shortens every database error of this engine to a message without values, before it is raised."""

    @event.listens_for(engine, "handle_error")
    def shorten_both(context: ExceptionContext) -> None:
        if isinstance(context.original_exception, psycopg.Error):
            shorten(context.original_exception, context.sqlalchemy_exception)


def shorten(original: psycopg.Error, raised: SQLAlchemyError | None) -> None:
    """Replaces the messages of a driver's error and of SQLAlchemy's by one without values."""
    original.args = (message_without_values(original),)
    if raised is not None:
        raised.args = (f"({type(original).__module__}.{type(original).__name__}) {original}",)


def message_without_values(error: psycopg.Error) -> str:
    """Returns the primary message of Postgres or of the driver, or the SQLSTATE if the message may quote a value."""
    if error.sqlstate is None:  # the connection failed, or the driver refused a value
        return f"{error}" if isinstance(error, psycopg.OperationalError) else "refused by the driver"
    if error.sqlstate[:2] in CLASSES_WITHOUT_VALUES:
        return error.diag.message_primary or f"{error}".partition("\n")[0]
    return f"SQLSTATE {error.sqlstate}"
