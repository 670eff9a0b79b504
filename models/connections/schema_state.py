"""Compares the database's schema with this code's migrations; imports no Alembic, because most processes need none."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sqlalchemy import Connection

from models.connections.database_errors import NO_WRITES
from models.connections.sql import text

MIGRATIONS = Path(__file__).parents[2] / "migrations"
PRESENT = """
    select to_regclass('alembic_version') is not null, current_setting('transaction_read_only') = 'on',
        current_setting('search_path'), current_schema()
"""
LAST_COMMIT_OF_OLDER_MIGRATIONS = "baace324"  # `magnus migrate` of this commit takes older databases to the baseline


@dataclass(frozen=True, slots=True)
class SchemaState:
    """The database's schema, compared with the migrations that this code knows, and whether it can be written to."""

    revision: str | None  # None if the database has no tables of Magnus
    newest: str  # the newest revision that this code knows
    known: bool  # whether this code knows `revision`
    serves_code_since: str | None  # OLDEST_CODE of the version that migrated the database last
    read_only: bool  # whether the server takes no writes
    search_path: str  # where Postgres looks for tables
    schema: str | None  # the first schema of `search_path` that exists; None if none exists

    @property
    def current(self) -> bool:
        """Whether the schema is the newest that this code knows."""
        return self.revision == self.newest

    @property
    def problem(self) -> str | None:
        """Why this code cannot serve with the database, with the remedy; None if it can."""
        if self.read_only:
            return NO_WRITES
        if self.current:
            return None
        if self.schema is None:
            remedy = "run `alter role ROLE set search_path = SCHEMA` for the role of MAGNUS_DATABASE_URL"
            return f"search_path ({self.search_path or 'empty'}) names no schema, so that no table is found; {remedy}"
        if self.revision is None:
            return (
                f"there are no tables of Magnus in the schema {self.schema}; run `magnus migrate`, or set search_path"
            )
        if self.known:
            return f"the schema is {self.revision}, this version needs {self.newest}; run `magnus migrate`"
        if self.revision.isdigit() and self.revision < known_revisions()[0]:
            return (
                f"the schema {self.revision} is older than what this version upgrades from; run `magnus migrate` of "
                f"Magnus at commit {LAST_COMMIT_OF_OLDER_MIGRATIONS} first, then that of this version"
            )
        if self.serves_code_since is None:
            return (
                f"the schema's revision {self.revision} is unknown to this version (it knows up to {self.newest}); "
                "check that MAGNUS_DATABASE_URL names a database of Magnus, or install the version that migrated it"
            )
        if self.serves_code_since not in known_revisions():
            return (
                f"the schema {self.revision} serves versions that know {self.serves_code_since}, and this one knows up "
                f"to {self.newest}; install a newer version, or undo the migration with the version that made it"
            )
        return None

    @property
    def described(self) -> str:
        """The revision as people read it: `0007 (this version serves 0006 and newer ones that allow it)`."""
        return f"{self.revision or 'none'} (this version serves {self.newest} and newer ones that allow it)"


def schema_state(connection: Connection) -> SchemaState:
    """Reads the schema's state, also of a database without tables of Magnus."""
    migrated, read_only, path, schema = connection.execute(text(PRESENT)).one()
    revision = None
    if migrated:
        revision = connection.scalar(text("select version_num from alembic_version"))
    known = revision in known_revisions()
    since = None
    if revision is not None and not known and connection.scalar(text("select to_regclass('service_state')")):
        since = connection.scalar(text("select value->>'serves_code_since' from service_state where name = 'schema'"))
    return SchemaState(revision, known_revisions()[-1], known, since, read_only, path, schema)


@cache
def known_revisions() -> Sequence[str]:
    """Returns every migration in `migrations/versions`, oldest first: the files are named by their revisions."""
    return sorted(path.name.partition("_")[0] for path in (MIGRATIONS / "versions").glob("[0-9]*.py"))
