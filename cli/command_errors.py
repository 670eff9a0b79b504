"""The errors that end a command with a message and an exit status."""

import click


class CommandFailed(click.ClickException):
    """The command could not do what it was asked to; exit status 1."""


class Unreachable(click.ClickException):
    """No service, database or broker answers; exit status 3."""

    exit_code = 3
