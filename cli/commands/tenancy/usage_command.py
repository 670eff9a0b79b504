"""`magnus usage`: requests, tokens and GPU-seconds by day, tenant and model."""

import json
from datetime import datetime
from pathlib import Path

import click
from rich.table import Table

from cli.options import client_of, json_option, service_options
from cli.terminal import make_console

COLUMNS = ("requests", "prompt_tokens", "answer_tokens", "gpu_seconds")


@click.command()
@click.option("--from", "first", type=click.DateTime(["%Y-%m-%d"]), help="First day, UTC; 30 days if not given.")
@click.option("--to", "last", type=click.DateTime(["%Y-%m-%d"]), help="Last day, included; today if not given.")
@click.option("--by", default="day,tenant,model", show_default=True, help="What the sums are grouped by.")
@click.option("--csv", "as_csv", is_flag=True, help="Print a CSV table.")
@json_option
@service_options
def usage(
    first: datetime | None,
    last: datetime | None,
    by: str,
    as_csv: bool,
    as_json: bool,
    url: str | None,
    api_key: str | None,
    state_dir: Path | None,
) -> None:
    """Show what was used; a key with the scope `operate` shows every tenant's."""
    if as_csv and as_json:
        raise click.UsageError("give --csv or --json, not both")
    days = {"from": first, "to": last}
    query = {"by": by} | {name: f"{day:%Y-%m-%d}" for name, day in days.items() if day is not None}
    with client_of(url, api_key, state_dir) as client:
        if as_csv:
            click.echo(client.usage_table(**query), nl=False)
            return
        report = client.usage(**query)
    if as_json:
        click.echo(json.dumps(report))
        return
    groups = [name for name in ("day", "tenant", "model") if name in by.split(",")]
    table = Table(*groups, *(name.replace("_", " ") for name in COLUMNS))
    for one in report["data"]:
        table.add_row(*(str(one[name]) for name in groups), *(f"{one[name]:,}" for name in COLUMNS))
    make_console().print(table)
