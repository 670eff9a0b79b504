"""`magnus requests`: moves or cancels the waiting requests of a model, such as one that nobody serves any more."""

import click
from sqlalchemy.orm import Session

from cli.hosting.service_access import with_session
from cli.output import CommandFailed
from models.operations import operator_jobs


@click.group()
def requests() -> None:
    """Move or cancel the waiting requests of one model."""


@requests.command()
@click.option("--model", required=True, help="The model that the requests name now.")
@click.option("--to", required=True, help="A model that a worker serves.")
@with_session
def move(opened: Session, model: str, to: str) -> None:
    """Let another model answer the waiting requests of a model.

    Their lengths are predicted again, and what was generated so far is dropped. Prompts stay within the limits of the
    model for which they were counted; one that is too long for the other model fails.
    """
    served = operator_jobs.served_models(opened)
    if to not in served:
        known = f"workers serve {', '.join(served)}" if served else "no worker is alive"
        raise CommandFailed(f"no worker serves {to}: {known}")
    click.echo(f"{operator_jobs.move_waiting(opened, model, to):,} requests moved from {model} to {to}")


@requests.command()
@click.option("--model", required=True, help="The model that the requests name.")
@with_session
def cancel(opened: Session, model: str) -> None:
    """Cancel all tenants' waiting requests for a model."""
    click.echo(f"{len(operator_jobs.cancel_waiting(opened, model)):,} requests of {model} cancelled")
