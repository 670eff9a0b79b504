"""The audit's entry of a command that changes the database: who ran it, on which host, with which options."""

import getpass
import os
import re
import socket

import click
from click.core import ParameterSource
from sqlalchemy import Connection

from models.operations import operator_access
from models.tenants.api_keys import PREFIX, READABLE_CHARACTERS

# Matches a whole API key; the regular expression's group is the part that may be shown.
SECRET = re.compile(rf"(\b{PREFIX}\S{{{READABLE_CHARACTERS - len(PREFIX)}}})\S+")


def record(connection: Connection) -> None:
    """Records the running command, if this transaction has written anything."""
    running = click.get_current_context(silent=True)
    if running is None:
        return
    given = {name: SECRET.sub(r"\1…", f"{value}") for name, value in running.params.items() if _is_given(running, name)}
    arguments = [one.name for one in running.command.params if isinstance(one, click.Argument)]
    target = " ".join(given.pop(name) for name in arguments if name in given)
    action = running.command_path.partition(" ")[2]
    operator_access.record_if_written(connection, _user(), action, target, given)


def _is_given(running: click.Context, name: str) -> bool:
    return running.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _user() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container's user has no name
        user = f"user {os.getuid()}"
    return f"{user}@{socket.gethostname()}"
