"""Options that several commands share, and the settings that result from them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import click
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError, ProgrammingError
from sqlalchemy.orm import Session

from cli.api_client import Client
from cli.hosting.service_files import api_address, database_url
from cli.output import CommandFailed, Unreachable
from models.connections.database_errors import explain
from models.session import make_engine, make_sessions
from settings import PolicyName, Settings, read_settings

POLICIES: tuple[str, ...] = get_args(PolicyName)  # choices of --policy

Command = Callable[..., None]

state_dir_option = click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="State directory of the service, .magnus if not given.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")


def service_options(command: Command) -> Command:
    """Add the options that name a service."""
    for option in (
        state_dir_option,
        click.option("--api-key", help="Its API key; that of the state directory if not given."),
        click.option("--url", help="Address of a running service; that of the state directory if not given."),
    ):
        command = option(command)
    return command


def settings_with(**options: Any) -> Settings:
    """The environment's settings, with the options that are not None in place of them."""
    return read_settings(**{name: value for name, value in options.items() if value is not None})


def client_of(url: str | None, api_key: str | None, state_dir: Path | None) -> Client:
    """A client of the service that the options, the settings or the state directory name."""
    return Client(*api_address(settings_with(url=url, api_key=api_key, state_dir=state_dir)))


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
