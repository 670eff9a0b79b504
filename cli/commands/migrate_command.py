"""`magnus migrate`: brings the database's schema up to date, or checks that it is."""

from pathlib import Path

import click
from sqlalchemy.exc import OperationalError

from cli.command_errors import CommandFailed, Unreachable
from cli.database_access import transaction
from cli.hosting.service_files import database_url
from cli.options import settings_with, state_dir_option
from models import schema_upgrade


@click.command()
@click.option("--check", is_flag=True, help="Change nothing; exit status 1 if steps are missing.")
@state_dir_option
def migrate(check: bool, state_dir: Path | None) -> None:
    """Bring the database to the newest schema; `magnus up` does so by itself. Several hosts may run it at once."""
    if check:
        with transaction(state_dir) as connection:
            if not schema_upgrade.is_current(connection):
                raise CommandFailed("the schema is not the newest; run `magnus migrate`")
    else:
        try:
            schema_upgrade.upgrade(database_url(settings_with(state_dir=state_dir)))
        except OperationalError as error:
            raise Unreachable(f"no connection to the database: {error.orig}") from error
    click.echo("the schema is the newest")
