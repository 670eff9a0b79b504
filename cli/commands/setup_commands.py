"""`magnus migrate` and `magnus settings`: prepare a database and a settings file."""

from pathlib import Path

import click
from alembic.util import CommandError
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from cli.entry_point import OUR_MODULES
from cli.hosting.service_files import database_url
from cli.output import CommandFailed, Unreachable
from cli.service_access import settings_with, state_dir_option, transaction
from models.connections import schema_upgrade
from models.connections.database_errors import explain


@click.command()
@click.option("--check", is_flag=True, help="Change nothing; exit status 1 if the schema cannot serve this version.")
@click.option("--grant", "role", metavar="ROLE", help="Then let ROLE run the service; it is made if there is none.")
@click.option("--down-to", "revision", metavar="REVISION", help="Undo the migrations behind REVISION instead.")
@state_dir_option
def migrate(check: bool, role: str | None, revision: str | None, state_dir: Path | None) -> None:
    """Bring the database to the newest schema, or check it.

    `magnus up` does this by itself if its role may. Several hosts may run it at once. The service itself needs no right
    to change tables: let the tables' owner run `magnus migrate --grant ROLE`, and name that role in
    MAGNUS_DATABASE_URL.
    """
    if sum((check, role is not None, revision is not None)) > 1:
        raise click.UsageError("--check, --grant and --down-to exclude each other")
    if check:
        with transaction(state_dir) as connection:
            state = schema_upgrade.schema_state(connection)
        if state.problem is not None:
            raise CommandFailed(state.problem)
        click.echo("the schema is the newest" if state.current else f"the schema is {state.described}")
        return
    url = database_url(settings_with(state_dir=state_dir))
    try:
        if revision is not None:
            schema_upgrade.downgrade(url, revision)
            click.echo(f"the schema is {revision}")
            return
        schema_upgrade.upgrade(url)
    except (schema_upgrade.UnusableSchema, CommandError) as error:
        raise CommandFailed(str(error)) from error
    except OperationalError as error:
        raise Unreachable(explain(error)) from error
    except SQLAlchemyError as error:
        raise CommandFailed(explain(error)) from error
    click.echo("the schema is the newest")
    if role is not None:
        with transaction(state_dir) as connection:
            made = schema_upgrade.grant_rights(connection, role)
        note = "was made without a password: give it one with `alter role … password …`, and" if made else "may"
        click.echo(f"{role} {note} {'may ' if made else ''}run the service")


@click.command()
def settings() -> None:
    """Print every setting, its default and what it does.

    `magnus settings > .env` begins a settings file.
    """
    click.echo((OUR_MODULES / ".env.example").read_text(encoding="utf-8"), nl=False)
