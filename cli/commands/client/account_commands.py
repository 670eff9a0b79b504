"""`magnus usage` and `magnus webhooks`: what a key's tenant has used, and which addresses get its events."""

from datetime import UTC, datetime

import click
from rich.table import Table

from cli.api_client import Client, Json
from cli.hosting.service_access import with_client
from cli.output import json_option, print_result, printed, table

WEBHOOKS = ("magnus", "webhooks")
USAGE_COLUMNS = ("requests", "prompt_tokens", "answer_tokens", "gpu_seconds")


@click.command()
@click.option("--from", "first", type=click.DateTime(["%Y-%m-%d"]), help="First day, UTC; 30 days if not given.")
@click.option("--to", "last", type=click.DateTime(["%Y-%m-%d"]), help="Last day, included; today if not given.")
@click.option("--by", default="day,tenant,model", show_default=True, help="Columns to group by; `tier` is another one.")
@click.option("--csv", "as_csv", is_flag=True, help="Print a CSV table.")
@json_option
@with_client
def usage(client: Client, first: datetime | None, last: datetime | None, by: str, as_csv: bool, as_json: bool) -> None:
    """Show the requests, tokens and GPU-seconds of each day, tenant and model, or --by tier too.

    A key with the scope `operate` shows every tenant's, any other key those of its own tenant.
    """
    if as_csv and as_json:
        raise click.UsageError("give --csv or --json, not both")
    days = {"from": first, "to": last}
    query = {"by": by} | {name: f"{day:%Y-%m-%d}" for name, day in days.items() if day is not None}
    if as_csv:
        click.echo(client.usage_table(**query), nl=False)
        return
    groups: list[str] = [name for name in ("day", "tenant", "model", "tier") if name in by.split(",")]
    print_result(client.usage(**query), as_json, lambda report: _usage_table(report, groups))


def _usage_table(report: Json, groups: list[str]) -> Table:
    rows = ([*(one[name] for name in groups), *(f"{one[name]:,}" for name in USAGE_COLUMNS)] for one in report["data"])
    return table((*groups, *(name.replace("_", " ") for name in USAGE_COLUMNS)), rows)


@click.group()
def webhooks() -> None:
    """Register webhook endpoints, rotate their secrets, look at deliveries."""


@webhooks.command()
@click.argument("address")
@click.option("--event", "events", multiple=True, help="For example response.completed; all if not given. Repeatable.")
@printed(lambda endpoint: f"{endpoint['id']}  {endpoint['secret']}")
@with_client
def create(client: Client, address: str, events: tuple[str, ...]) -> Json:
    """Post events to ADDRESS, and print the secret that signs them.

    The secret is shown this once.
    """
    return client.call("POST", *WEBHOOKS, json={"url": address} | ({"events": events} if events else {}))


def _endpoints(endpoints: list[Json]) -> Table:
    rows = ((one["id"], one["url"], " ".join(one["events"]), one["failures"]) for one in endpoints)
    return table(("id", "address", "events", "failures in a row"), rows)


@webhooks.command("list")
@printed(_endpoints)
@with_client
def list_webhooks(client: Client) -> list[Json]:
    """Show the endpoints of the key's tenant."""
    return list(client.call("GET", *WEBHOOKS)["data"])


@webhooks.command()
@click.argument("id")
@click.option(
    "--overlap-s",
    type=click.IntRange(0, 604_800),
    default=86_400,
    show_default=True,
    help="Seconds for which the old secret signs, too.",
)
@printed(lambda endpoint: endpoint["secret"])
@with_client
def rotate(client: Client, id: str, overlap_s: int) -> Json:
    """Make a new secret for the endpoint ID and print it.

    For the seconds of --overlap-s, events carry the signatures of both secrets.
    """
    return client.call("POST", *WEBHOOKS, id, "rotate", params={"overlap_s": overlap_s})


@webhooks.command()
@click.argument("id")
@printed(lambda deleted: f"deleted {deleted['id']}")
@with_client
def delete(client: Client, id: str) -> Json:
    """Send nothing more to the endpoint ID."""
    return client.call("DELETE", *WEBHOOKS, id)


def _deliveries(found: list[Json]) -> Table:
    rows = []
    for one in found:
        at = f"{datetime.fromtimestamp(one['created_at'], UTC):%Y-%m-%d %H:%M:%S}"
        rows.append((one["id"], one["type"], one["data_id"], at, one["state"], one["attempts"], one["last_error"]))
    return table(("id", "event", "of", "at", "state", "attempts", "last error"), rows)


@webhooks.command()
@click.argument("id")
@click.option("--limit", type=click.IntRange(1, 100), default=20, show_default=True, help="Most deliveries shown.")
@printed(_deliveries)
@with_client
def deliveries(client: Client, id: str, limit: int) -> list[Json]:
    """Show the newest deliveries to the endpoint ID."""
    return list(client.call("GET", *WEBHOOKS, id, "deliveries", params={"limit": limit})["data"])


@webhooks.command()
@click.argument("id")
@click.argument("delivery", type=click.IntRange(1))
@printed(lambda sent: f"{sent['event']} {sent['state']}")
@with_client
def redeliver(client: Client, id: str, delivery: int) -> Json:
    """Send DELIVERY to the endpoint ID again, now."""
    return client.call("POST", *WEBHOOKS, id, "deliveries", str(delivery), "redeliver")
