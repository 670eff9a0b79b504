"""The installed `magnus`: makes our own modules the first that Python finds, then runs the command.

A wheel keeps them inside the package `magnus_service` (setup.py), a checkout in its root: in both the parent of `cli/`.
"""

import sys
from pathlib import Path

OUR_MODULES = Path(__file__).parents[1]


def main() -> None:
    """Run `magnus`, whatever lies in the working directory or on PYTHONPATH."""
    sys.path.insert(0, str(OUR_MODULES))
    # imported here because only now Python finds it
    from cli.main import main as run

    run()
