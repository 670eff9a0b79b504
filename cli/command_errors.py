"""What a command may fail with: a sentence, a remedy and an exit status."""

import click


class Failed(click.ClickException):
    """The command could not do what was asked; exit status 1."""


class NothingThere(click.ClickException):
    """No service, or no database, to talk to; exit status 3."""

    exit_code = 3
