"""`magnus usage`: requests, tokens and GPU-seconds by day, tenant and model."""

import json
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.table import Table

from cli.output import make_console
from cli.service_access import client_of, json_option, service_options

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


@click.group()
def webhooks() -> None:
    """Register webhook endpoints, rotate their secrets, look at deliveries."""


@webhooks.command()
@click.argument("address")
@click.option("--event", "events", multiple=True, help="For example response.completed; all if not given. Repeatable.")
@json_option
@service_options
def create(
    address: str, events: tuple[str, ...], as_json: bool, url: str | None, api_key: str | None, state_dir: Path | None
) -> None:
    """Post events to ADDRESS from now on, and print the secret that signs them; nobody can read it again."""
    with client_of(url, api_key, state_dir) as client:
        endpoint = client.create_webhook(address, events)
    click.echo(json.dumps(endpoint) if as_json else f"{endpoint['id']}  {endpoint['secret']}")


@webhooks.command("list")
@json_option
@service_options
def list_(as_json: bool, url: str | None, api_key: str | None, state_dir: Path | None) -> None:
    """Show the endpoints of the key's tenant."""
    with client_of(url, api_key, state_dir) as client:
        endpoints = client.webhooks()
    if as_json:
        click.echo(json.dumps(endpoints))
        return
    table = Table("id", "address", "events", "failures in a row")
    for one in endpoints:
        table.add_row(one["id"], one["url"], " ".join(one["events"]), str(one["failures"]))
    make_console().print(table)


@webhooks.command()
@click.argument("id")
@click.option(
    "--overlap-s", type=click.IntRange(0, 604_800), default=86_400, show_default=True, help="The old secret signs on."
)
@json_option
@service_options
def rotate(
    id: str, overlap_s: int, as_json: bool, url: str | None, api_key: str | None, state_dir: Path | None
) -> None:
    """Make a new secret for the endpoint ID and print it; events carry both signatures for a while."""
    with client_of(url, api_key, state_dir) as client:
        endpoint = client.rotate_webhook(id, overlap_s)
    click.echo(json.dumps(endpoint) if as_json else endpoint["secret"])


@webhooks.command()
@click.argument("id")
@json_option
@service_options
def delete(id: str, as_json: bool, url: str | None, api_key: str | None, state_dir: Path | None) -> None:
    """Send nothing more to the endpoint ID."""
    with client_of(url, api_key, state_dir) as client:
        deleted = client.delete_webhook(id)
    click.echo(json.dumps(deleted) if as_json else f"deleted {id}")


@webhooks.command()
@click.argument("id")
@click.option("--limit", type=click.IntRange(1, 100), default=20, show_default=True, help="The newest so many.")
@json_option
@service_options
def deliveries(
    id: str, limit: int, as_json: bool, url: str | None, api_key: str | None, state_dir: Path | None
) -> None:
    """Show what was sent to the endpoint ID, and what waits."""
    with client_of(url, api_key, state_dir) as client:
        found = client.deliveries(id, limit)
    if as_json:
        click.echo(json.dumps(found))
        return
    table = Table("id", "event", "of", "at", "state", "attempts", "last error")
    for one in found:
        at = f"{datetime.fromtimestamp(one['created_at'], UTC):%Y-%m-%d %H:%M:%S}"
        cells = (str(one["id"]), one["type"], one["data_id"], at, one["state"], str(one["attempts"]))
        table.add_row(*cells, one["last_error"] or "")
    make_console().print(table)


@webhooks.command()
@click.argument("id")
@click.argument("delivery", type=click.IntRange(1))
@json_option
@service_options
def redeliver(
    id: str, delivery: int, as_json: bool, url: str | None, api_key: str | None, state_dir: Path | None
) -> None:
    """Send DELIVERY to the endpoint ID again, now."""
    with client_of(url, api_key, state_dir) as client:
        sent = client.redeliver(id, delivery)
    click.echo(json.dumps(sent) if as_json else f"{sent['event']} {sent['state']}")
