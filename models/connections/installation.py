"""The name and the secret that keep the messages of several installations apart in one Redis."""

from dataclasses import dataclass, field

from sqlalchemy import Connection

from models.connections.sql import text


@dataclass(frozen=True, slots=True)
class Installation:
    """The name and the secret, drawn by a migration, that keep installations apart in a shared Redis.

    The name, twelve hex digits, is part of keys and channels; whoever may read Postgres knows the secret.
    """

    name: str
    secret: str = field(repr=False)


def read_installation(connection: Connection) -> Installation:
    """Returns this database's installation."""
    drawn = text("select value->>'id', value->>'secret' from service_state where name = 'installation'")
    name, secret = connection.execute(drawn).one()
    return Installation(name, secret)
