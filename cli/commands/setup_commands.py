"""`magnus migrate` and `magnus settings`: prepare a database and a settings file."""

import time
from pathlib import Path

import click
from alembic.util import CommandError
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from cli.entry_point import OUR_MODULES
from cli.hosting.service_access import settings_with, state_dir_option, transaction
from cli.hosting.service_files import database_url
from cli.output import CommandFailed, Unreachable
from models import schema_upgrade
from models.connections import schema_state
from models.connections.database_errors import explain
from models.connections.session import brief_engine

LOOK_AGAIN_S = 2.0  # seconds between two looks at a Postgres that does not answer; not tuned


@click.command()
@click.option("--check", is_flag=True, help="Change nothing; exit status 1 if the schema cannot serve this version.")
@click.option("--grant", "role", metavar="ROLE", help="Also grant ROLE the rights of the service; creates the role.")
@click.option("--down-to", "revision", metavar="REVISION", help="Undo the migrations behind REVISION instead.")
@click.option("--wait", is_flag=True, help="Wait for Postgres as long as it takes, instead of failing.")
@state_dir_option
def migrate(check: bool, role: str | None, revision: str | None, wait: bool, state_dir: Path | None) -> None:
    """Bring the database to the newest schema, or check it.

    `magnus up` does this by itself if its role may. Several hosts may run it at once. The service itself needs no right
    to change tables: let the tables' owner run `magnus migrate --grant ROLE`, and name that role in
    MAGNUS_DATABASE_URL.
    """
    if sum((check, role is not None, revision is not None)) > 1:
        raise click.UsageError("--check, --grant and --down-to exclude each other")
    if check:
        with transaction(state_dir) as connection:
            state = schema_state.schema_state(connection)
        if state.problem is not None:
            raise CommandFailed(state.problem)
        click.echo("the schema is the newest" if state.current else f"the schema is {state.described}")
        return
    url = database_url(settings_with(state_dir=state_dir))
    if wait:
        _await_database(url)
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


def _await_database(url: str) -> None:
    """Returns once Postgres answers; prints each new reason why it does not."""
    said = ""
    with brief_engine(url, "magnus migrate") as engine:
        while True:
            try:
                with engine.connect():
                    return
            except OperationalError as error:
                if (reason := explain(error)) != said:
                    click.echo(f"waiting for Postgres: {reason}", err=True)
                    said = reason
            time.sleep(LOOK_AGAIN_S)


@click.command()
def settings() -> None:
    """Print every setting, its default and what it does.

    `magnus settings > .env` begins a settings file.
    """
    click.echo((OUR_MODULES / ".env.example").read_text(encoding="utf-8"), nl=False)
