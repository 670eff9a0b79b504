"""The console for tables: as wide as the terminal, and in a pipe or a log wide enough to cut nothing."""

import sys

from rich.console import Console

PIPE_WIDTH = 160  # characters; any width does that the rows of every table fit in


def make_console() -> Console:
    """A console on standard output."""
    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)
