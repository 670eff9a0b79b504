"""`magnus models`: lists and activates versions of the length predictor and of the serving time estimator."""

import json
from pathlib import Path

import click
from rich.table import Table

from cli.command_errors import CommandFailed
from cli.database_access import session
from cli.options import json_option, state_dir_option
from cli.terminal import make_console
from models import model_versions


@click.group()
def models() -> None:
    """List the published learned models, and roll back to one of them."""


@models.command("list")
@json_option
@state_dir_option
def list_(as_json: bool, state_dir: Path | None) -> None:
    """Show every version with its scores on held-out outcomes, the newest first."""
    with session(state_dir) as opened:
        rows = model_versions.list_all(opened)
    if as_json:
        facts = [
            {
                "version": row.version,
                "kind": row.kind,
                "active": row.active,
                "unreadable": row.unreadable,
                "created_at": row.created_at.timestamp(),
                "sha256": row.sha256.hex(),
                "scores": row.scores,
                "data": row.data,
            }
            for row in rows
        ]
        click.echo(json.dumps(facts))
        return
    table = Table("version", "in service", "created", "trained on", "scores when published")
    for row in rows:
        scores = row.scores.get("candidate", {})
        shown = ", ".join(f"{name} {value:.4g}" for name, value in scores.items() if isinstance(value, int | float))
        table.add_row(
            row.version,
            "yes" if row.active else "unreadable" if row.unreadable else "",
            f"{row.created_at:%Y-%m-%d %H:%M:%S}",
            str(row.data.get("training", "")),
            shown,
        )
    make_console().print(table)


@models.command()
@click.argument("version")
@state_dir_option
def activate(version: str, state_dir: Path | None) -> None:
    """Put VERSION into service; predictors and planner take it over without a restart."""
    try:
        with session(state_dir) as opened:
            model_versions.activate(opened, version)
    except model_versions.UnknownVersion as error:
        raise CommandFailed(str(error)) from error
    click.echo(f"{version} is in service")
