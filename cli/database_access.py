"""The commands' access to the service's Postgres: one short-lived connection each."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError, ProgrammingError
from sqlalchemy.orm import Session

from cli.command_errors import CommandFailed, Unreachable
from cli.hosting.service_files import database_url
from cli.options import settings_with
from models.connections.database_errors import explain
from models.session import make_engine, make_sessions


@contextmanager
def transaction(state_dir: Path | None) -> Iterator[Connection]:
    """A transaction on the configured database, else on that of the service in `state_dir`.

    Raises Unreachable, and CommandFailed if the tables are missing.
    """
    engine = make_engine(database_url(settings_with(state_dir=state_dir)), pool_size=1, name="magnus command")
    try:
        with engine.begin() as connection:
            yield connection
    except OperationalError as error:
        raise Unreachable(explain(error)) from error
    except ProgrammingError as error:
        raise CommandFailed(explain(error)) from error
    finally:
        engine.dispose()


@contextmanager
def session(state_dir: Path | None) -> Iterator[Session]:
    """A session in such a transaction."""
    with transaction(state_dir) as connection, make_sessions(connection.engine)(bind=connection) as opened:
        yield opened
        opened.flush()
