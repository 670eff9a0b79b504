"""Where tables are printed: as wide as the terminal, and in a pipe or a log wide enough to cut nothing."""

import sys

from rich.console import Console

PIPE_WIDTH = 160


def make_console() -> Console:
    """Standard output."""
    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)
