"""`magnus webhooks`: the addresses that are told when background responses have ended."""

import json
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.table import Table

from cli.options import client_of, json_option, service_options
from cli.terminal import make_console


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
