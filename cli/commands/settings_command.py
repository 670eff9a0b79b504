"""`magnus settings`: prints `.env.example`, which an installed wheel carries too."""

import click

from cli.entry_point import OUR_MODULES


@click.command()
def settings() -> None:
    """Print every setting with its default and what it does; `magnus settings > .env` begins a settings file."""
    click.echo((OUR_MODULES / ".env.example").read_text(encoding="utf-8"), nl=False)
