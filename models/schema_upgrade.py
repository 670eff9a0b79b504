"""Upgrades a database to the newest schema, for `magnus migrate`, `magnus up` and the tests."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from models.session import make_engine

MIGRATIONS = Path(__file__).parent.parent / "migrations"
# "magn" in ASCII; any value does that no other advisory lock of the database has. Hosts that start at the same time
# upgrade one after the other.
UPGRADE_LOCK = 0x6D61676E


def upgrade(url: str) -> None:
    """Run the migrations that the database has not had yet; safe to call from several hosts at once."""
    engine = make_engine(url, answer_within_s=None, pool_size=1, name="magnus migrate")
    try:
        with engine.begin() as connection:
            connection.execute(text("select pg_advisory_xact_lock(:lock)"), {"lock": UPGRADE_LOCK})
            command.upgrade(alembic_config(connection), "head")
    finally:
        engine.dispose()


def is_current(connection: Connection) -> bool:
    """Whether the database has the newest migration."""
    return MigrationContext.configure(connection).get_current_revision() == newest_revision()


def newest_revision() -> str | None:
    """The newest migration in `migrations/versions`."""
    return ScriptDirectory(str(MIGRATIONS)).get_current_head()


def alembic_config(connection: Connection) -> Config:
    """Alembic's configuration for its commands on this connection."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config
