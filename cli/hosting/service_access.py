"""The options that name a service, and access to it: its settings, a client of its API, its database."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, get_args

import click
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import OperationalError, ProgrammingError
from sqlalchemy.orm import Session

from cli.api_client import Client
from cli.hosting import command_audit
from cli.hosting.service_files import api_address, database_url
from cli.output import CommandFailed, Unreachable
from models.connections.database_errors import explain
from models.connections.session import brief_engine, make_sessions
from settings import PolicyName, Settings, read_settings

POLICIES: tuple[str, ...] = get_args(PolicyName)  # choices of --policy
# Names that a comparison of services accepts beside the policies: each is a policy with the settings of its service.
VARIANTS: dict[str, tuple[str, dict[str, str]]] = {
    "magnus-published": ("magnus", {"MAGNUS_PARAMETERS": "magnus=published", "MAGNUS_PREDICTOR": "usin"})
}

Command = Callable[..., None]

state_dir_option = click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="State directory of the service, .magnus if not given.",
)


def service_options(command: Command) -> Command:
    """Adds the options that name a service: --url, --api-key and --state-dir."""
    for option in (
        state_dir_option,
        click.option("--api-key", help="Its API key; if not given, that of the state directory for its own service."),
        click.option("--url", help="Address of a running service; that of the state directory if not given."),
    ):
        command = option(command)
    return command


def settings_with(**options: Any) -> Settings:
    """Returns the environment's settings, overridden by the options that are not None."""
    return read_settings(**{name: value for name, value in options.items() if value is not None})


def client_for(url: str | None, api_key: str | None, state_dir: Path | None) -> Client:
    """Returns a client of the service that the options, the settings or the state directory name."""
    return Client(*api_address(settings_with(url=url, api_key=api_key, state_dir=state_dir)))


def with_client(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that name a service, and calls the command with an open client of it as its first argument."""

    @service_options
    @wraps(command)
    def run(url: str | None, api_key: str | None, state_dir: Path | None, **arguments: Any) -> Any:
        with client_for(url, api_key, state_dir) as client:
            return command(client, **arguments)

    return run


def with_session(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --state-dir, and calls the command with a session of that service's database as its first argument."""

    @state_dir_option
    @wraps(command)
    def run(state_dir: Path | None, **arguments: Any) -> Any:
        with session(state_dir) as opened:
            return command(opened, **arguments)

    return run


@contextmanager
def database(state_dir: Path | None) -> Iterator[Engine]:
    """Yields the configured database or that of `state_dir`; raises Unreachable, CommandFailed."""
    try:
        with brief_engine(database_url(settings_with(state_dir=state_dir)), "magnus command") as engine:
            yield engine
    except OperationalError as error:
        raise Unreachable(explain(error)) from error
    except ProgrammingError as error:
        raise CommandFailed(explain(error)) from error


@contextmanager
def transaction(state_dir: Path | None) -> Iterator[Connection]:
    """Opens a transaction on a `database`; if it has written anything, the audit records the command."""
    with database(state_dir) as engine, engine.begin() as connection:
        yield connection
        command_audit.record(connection)


@contextmanager
def session(state_dir: Path | None) -> Iterator[Session]:
    """Opens a session in a `transaction`."""
    with transaction(state_dir) as connection, make_sessions(connection.engine)(bind=connection) as opened:
        yield opened
        opened.flush()
