"""Keeps what clients sent out of database errors, whose messages reach the logs.

Postgres quotes values in its messages (`invalid input syntax for type integer: "..."`) and whole rows in their details.
"""

import psycopg
from sqlalchemy import Engine, event
from sqlalchemy.engine import ExceptionContext

# Classes of SQLSTATE whose primary message names servers, tables, columns and constraints, never a value: connection,
# transaction state, integrity, invalid credentials, rollback, names and rights, resources, state, operator, system.
CLASSES_WITHOUT_VALUES = {"08", "23", "25", "28", "3D", "3F", "40", "42", "53", "54", "55", "57", "58"}


def hide_values(engine: Engine) -> None:
    """Shorten every database error of this engine to a message without values, before anybody sees it."""

    @event.listens_for(engine, "handle_error")
    def shorten(context: ExceptionContext) -> None:
        original, raised = context.original_exception, context.sqlalchemy_exception
        if not isinstance(original, psycopg.Error):
            return
        original.args = (message_without_values(original),)
        if raised is not None:
            raised.args = (f"({type(original).__module__}.{type(original).__name__}) {original}",)


def message_without_values(error: psycopg.Error) -> str:
    """Postgres's primary message or the driver's, or only the SQLSTATE where either may quote a value."""
    if error.sqlstate is None:  # no answer of the server: the connection failed, or the driver refused a value
        return f"{error}" if isinstance(error, psycopg.OperationalError) else "refused by the driver"
    if error.sqlstate[:2] in CLASSES_WITHOUT_VALUES:
        return error.diag.message_primary or f"{error}".partition("\n")[0]
    return f"SQLSTATE {error.sqlstate}"
