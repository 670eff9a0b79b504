"""Compares the database's schema with the migrations that this code knows; imports no Alembic, as most processes do."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sqlalchemy import Connection

from models.sql import text

MIGRATIONS = Path(__file__).parents[2] / "migrations"


@dataclass(frozen=True, slots=True)
class SchemaState:
    """The database's schema, compared with the migrations that this code knows, and whether it can be written to."""

    revision: str | None  # None: Magnus has no tables there
    newest: str  # the newest revision that this code knows
    known: bool  # whether this code knows `revision`
    serves_code_since: str | None  # OLDEST_CODE of the version that migrated the database last
    read_only: bool  # whether the server takes no writes

    @property
    def current(self) -> bool:
        """Whether the schema is the newest that this code knows."""
        return self.revision == self.newest

    @property
    def problem(self) -> str | None:
        """Why this code cannot serve with the database, with the remedy; None if it can."""
        if self.read_only:
            remedy = "give MAGNUS_DATABASE_URL the primary's address, or turn default_transaction_read_only off"
            return f"the database takes no writes; {remedy}"
        if self.current:
            return None
        if self.revision is None:
            return "the database has no tables of Magnus; run `magnus migrate`"
        if self.known:
            return f"the schema is {self.revision}, this version needs {self.newest}; run `magnus migrate`"
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
    """Reads the schema's state, also where Magnus has no tables."""
    revision = None
    if connection.scalar(text("select to_regclass('alembic_version')")):
        revision = connection.scalar(text("select version_num from alembic_version"))
    known = revision in known_revisions()
    since = None
    if revision is not None and not known and connection.scalar(text("select to_regclass('service_state')")):
        since = connection.scalar(text("select value->>'serves_code_since' from service_state where name = 'schema'"))
    read_only = connection.scalar(text("select current_setting('transaction_read_only') = 'on'"))
    return SchemaState(revision, known_revisions()[-1], known, since, bool(read_only))


@cache
def known_revisions() -> Sequence[str]:
    """Returns every migration in `migrations/versions`, oldest first: the files are named by their revisions."""
    return sorted(path.name.partition("_")[0] for path in (MIGRATIONS / "versions").glob("[0-9]*.py"))
