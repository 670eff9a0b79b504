"""The installed `magnus`: puts our modules (in the parent of `cli/`) first on Python's path, then runs the command."""

import sys
from pathlib import Path

OUR_MODULES = Path(__file__).parents[1]


def main() -> None:
    """Run `magnus`, independent of modules in the working directory or on PYTHONPATH."""
    sys.path.insert(0, str(OUR_MODULES))
    # imported here because Python finds it only now
    from cli.main import main as run

    run()
