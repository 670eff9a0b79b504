"""What keeps the messages of several installations apart in one Redis."""

from dataclasses import dataclass, field

from sqlalchemy import Connection

from models.sql import text


@dataclass(frozen=True, slots=True)
class Installation:
    """What keeps an installation's messages apart in a shared Redis; migrations drew both, the same for every process.

    The name, twelve hex digits, is a part of keys and channels; the secret is known to those who may read Postgres.
    """

    name: str
    secret: str = field(repr=False)


def read_installation(connection: Connection) -> Installation:
    """Returns this database's installation."""
    drawn = text("select value->>'id', value->>'secret' from service_state where name = 'installation'")
    name, secret = connection.execute(drawn).one()
    return Installation(name, secret)
