"""Options that several commands share."""

from pathlib import Path
from typing import get_args

import click

from settings import PolicyName

POLICIES: tuple[str, ...] = get_args(PolicyName)

state_dir_option = click.option(
    "--state-dir", type=click.Path(path_type=Path, file_okay=False), help="State directory, .magnus if not given."
)
