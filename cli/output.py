"""The console for tables: as wide as the terminal, and in a pipe or a log wide enough to cut nothing."""

import sys

import click
from rich.console import Console

PIPE_WIDTH = 160  # characters; any width does that the rows of every table fit in


def make_console() -> Console:
    """A console on standard output."""
    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)


class CommandFailed(click.ClickException):
    """The command could not do what it was asked to; exit status 1."""


class Unreachable(click.ClickException):
    """No service, database or broker answers; exit status 3."""

    exit_code = 3
