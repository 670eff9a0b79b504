"""The output of commands: a result as a table, a line or JSON, or an error that sets the exit status."""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any

import click
from rich.console import Console, RenderableType
from rich.table import Table

PIPE_WIDTH = 160  # characters; the rows of every table fit into it

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")


class CommandFailed(click.ClickException):
    """The command could not do what it was asked to; exit status 1."""


class WrongSetting(click.ClickException):
    """A setting, or the model that it names, cannot be used; exit status 2."""

    exit_code = 2


class Unreachable(click.ClickException):
    """No service, database or broker answers; exit status 3."""

    exit_code = 3


def make_console() -> Console:
    """Returns a console on standard output, in a pipe or a log wide enough to cut no table."""
    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)


def table(columns: Sequence[str], rows: Iterable[Iterable[object]], **options: Any) -> Table:
    """Returns a table with these rows; None makes an empty cell. The `options` are those of rich."""
    made = Table(*columns, **options)
    for row in rows:
        made.add_row(*("" if cell is None else str(cell) for cell in row))
    return made


def print_result(result: Any, as_json: bool, render: Callable[[Any], RenderableType], *, lines: bool = False) -> None:
    """Prints what `render` makes of the result, or the result as a line of JSON, with `lines` a line for each item."""
    if as_json:
        for item in result if lines else [result]:
            click.echo(json.dumps(item))
        return
    shown = render(result)
    click.echo(shown) if isinstance(shown, str) else make_console().print(shown)


def printed(
    render: Callable[[Any], RenderableType], *, lines: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Adds the option --json to a command that returns its result, and prints that result (see `print_result`)."""

    def add_output(command: Callable[..., Any]) -> Callable[..., None]:
        @json_option
        @wraps(command)
        def run(as_json: bool, **arguments: Any) -> None:
            print_result(command(**arguments), as_json, render, lines=lines)

        return run

    return add_output
