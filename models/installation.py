"""The installation's name, drawn at its database's first migration: it keeps its messages apart in a shared Redis."""

from sqlalchemy import Connection

from models.sql import text


def installation_id(connection: Connection) -> str:
    """Twelve hexadecimal digits, the same for every process on this database."""
    return str(
        connection.execute(text("select value->>'id' from service_state where name = 'installation'")).scalar_one()
    )
