"""Brings a database to the newest schema; `magnus migrate`, `magnus up` and the tests all come here."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from models.session import make_engine

MIGRATIONS = Path(__file__).parent.parent / "migrations"
UPGRADE_LOCK = 0x6D61676E  # "magn": hosts that start at once upgrade one after the other


def upgrade(url: str) -> None:
    """Run the steps that the database has not seen yet; safe to call from several hosts at once."""
    engine = make_engine(url, pool_size=1, name="magnus migrate")
    try:
        with engine.begin() as connection:
            connection.execute(text("select pg_advisory_xact_lock(:lock)"), {"lock": UPGRADE_LOCK})
            command.upgrade(config(connection), "head")
    finally:
        engine.dispose()


def is_current(connection: Connection) -> bool:
    """Whether the database stands at the newest step."""
    return MigrationContext.configure(connection).get_current_revision() == newest_revision()


def newest_revision() -> str | None:
    """The newest step in `migrations/versions`."""
    return ScriptDirectory(str(MIGRATIONS)).get_current_head()


def config(connection: Connection) -> Config:
    """Alembic's configuration for its commands on this connection."""
    alembic = Config()
    alembic.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    alembic.set_main_option("path_separator", "os")
    alembic.attributes["connection"] = connection
    return alembic
