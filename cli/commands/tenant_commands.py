"""`magnus keys` and `magnus tenant`: API keys, and what operators set for a tenant: its limits and its weight."""

import math
import re
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
from rich.table import Table
from sqlalchemy.orm import Session

from cli.commands.tenant_deletion import delete_tenant
from cli.hosting.service_access import database, session, settings_with, state_dir_option, with_session
from cli.option_types import Budget
from cli.output import CommandFailed, printed, table
from models.tenants import api_keys, tenant_limits
from models.tenants.api_keys import DEFAULT_SCOPES, Scope
from models.tenants.tenant_tables import ApiKey
from models.tenants.tenant_tables import Tenant as StoredTenant
from models.upkeep import tenant_removal

UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
LONGEST_DAYS = 36_500  # a century; Postgres would hold more
MOST, MOST_TOKENS = 2**31 - 1, 2**62  # greatest limits that the columns hold
LIGHTEST, HEAVIEST = 0.001, 1000.0  # any bounds work that keep the lightest tenant's share above rounding errors
DEFAULT = "default"
LIMITS = {  # each with its title
    "weight": "weight",
    "requests_per_minute": "requests a minute",
    "queued_requests": "queued requests",
    "queued_tokens": "queued tokens",
    "priority_requests": "priority requests",
    "generated_tokens_per_minute": "generated tokens a minute",
    "gpu_seconds_per_minute": "GPU-seconds a minute",
    "budget": "budget",
}


class Expiry(click.ParamType[datetime | timedelta]):
    """A duration such as 90d, or an instant such as 2027-01-31 or 2027-01-31T12:00+01:00, UTC by default."""

    name = "DURATION|DATE"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime | timedelta:
        """Parse the text; a duration counts from now by the database's clock."""
        parsed = re.fullmatch(r"([1-9]\d{0,6})([mhdw])", str(value))
        if parsed is not None:
            duration = timedelta(**{UNITS[parsed[2]]: int(parsed[1])})
            if duration.days > LONGEST_DAYS:
                self.fail("a key may be valid for a century; leave --expires out for one that does not expire")
            return duration
        try:
            instant = datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f"{value!r} is neither a duration (30m, 12h, 90d, 8w) nor a date (2027-01-31)")
        instant = instant if instant.tzinfo else instant.replace(tzinfo=UTC)
        if instant <= datetime.now(UTC):
            self.fail(f"{value} is past: give an instant that is to come, or a duration such as 90d")
        return instant


class Name(click.ParamType[str]):
    """A text that is not blank."""

    name = "TEXT"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text without white space around it; raises click.BadParameter if nothing is left."""
        return str(value).strip() or self.fail("give a name that is not empty")


class Scopes(click.ParamType[frozenset[Scope]]):
    """Comma-separated scopes."""

    name = "SCOPES"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> frozenset[Scope]:
        """Parse the names of scopes; raises click.BadParameter for an unknown one."""
        try:
            return frozenset(Scope(name.strip()) for name in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r}: choose among {', '.join(Scope)}, separated by commas")


@click.group()
def keys() -> None:
    """Create, list and revoke API keys."""


@keys.command()
@click.option("--name", type=Name(), required=True, help="Who or what uses it.")
@click.option(
    "--tenant", type=Name(), default="default", show_default=True, help="Keys of one tenant see the same requests."
)
@click.option(
    "--scopes",
    type=Scopes(),
    default=",".join(sorted(DEFAULT_SCOPES)),
    show_default=True,
    help="submit: make and change requests; read: see them; operate: see every tenant's usage.",
)
@click.option("--expires", type=Expiry(), help="90d, 12h, or a date; never if not given.")
@printed(lambda facts: facts["key"])
@with_session
def create(opened: Session, **given: Any) -> dict[str, object]:
    """Make a key and print it.

    The key is shown this once; the database holds its digest.
    """
    row, key = api_keys.create(opened, **given)
    return {**_key_facts(row), "key": key}


def _keys_table(keys: list[dict[str, Any]]) -> Table:
    rows = []
    for one in keys:
        instants = (one[name] for name in ("created_at", "expires_at", "revoked_at"))
        texts = (None if at is None else f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M}" for at in instants)
        rows.append((one["prefix"], one["name"], one["tenant"], " ".join(one["scopes"]), *texts))
    return table(("prefix", "name", "tenant", "scopes", "created", "expires", "revoked"), rows)


@keys.command("list")
@printed(_keys_table)
@with_session
def list_keys(opened: Session) -> list[dict[str, object]]:
    """Show all keys by their first characters."""
    return [_key_facts(row) for row in api_keys.list_all(opened)]


@keys.command()
@click.argument("prefix")
@state_dir_option
def revoke(prefix: str, state_dir: Path | None) -> None:
    """Revoke the key that begins with PREFIX.

    PREFIX is as `magnus keys list` shows it, or the whole key.
    """
    shown = prefix[: api_keys.READABLE_CHARACTERS]
    with session(state_dir) as opened:
        revoked = api_keys.revoke(opened, prefix)
    if not revoked:
        raise CommandFailed(f"no valid key begins with {shown}; `magnus keys list` shows them all")
    click.echo(f"revoked {shown}")


def _key_facts(row: ApiKey) -> dict[str, object]:
    instants = {name: getattr(row, name) for name in ("created_at", "expires_at", "revoked_at")}
    return {
        "prefix": row.prefix,
        "name": row.name,
        "tenant": row.tenant,
        "scopes": row.scopes,
        **{name: None if at is None else at.timestamp() for name, at in instants.items()},
    }


class Limit(click.ParamType[int | str]):
    """A number, or `default`."""

    name = "NUMBER|default"

    def __init__(self, most: int, least: int = 1) -> None:
        self._least, self._most = least, most

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """Parse the limit; raises click.BadParameter for any other text."""
        if value == DEFAULT:
            return DEFAULT
        text = str(value)
        if not text.isascii() or not text.isdigit() or not self._least <= int(text[:20]) <= self._most:
            self.fail(f"{text!r} is neither a number from {self._least} to {self._most} nor {DEFAULT!r}")
        return int(text)


@click.group()
def tenant() -> None:
    """Set and list tenants' limits and their weights in a busy fleet; remove a tenant."""


@tenant.command("set")
@click.argument("name")
@click.option("--requests-per-minute", type=Limit(MOST), help="Requests of all of its keys together.")
@click.option("--queued-requests", type=Limit(MOST), help="Most requests that it may have in the queue.")
@click.option("--queued-tokens", type=Limit(MOST_TOKENS), help="Most prompt tokens of those requests together.")
@click.option(
    "--generated-tokens-per-minute",
    type=Limit(MOST_TOKENS),
    help="Tokens that its requests of a minute may generate, as predicted at submission; no limit if never set.",
)
@click.option(
    "--gpu-seconds-per-minute",
    type=Limit(MOST),
    help="GPU-seconds that its requests of a minute may take, as expected at submission; no limit if never set.",
)
@click.option("--priority-requests", type=Limit(MOST, 0), help="Most requests in the service tier priority at once.")
@click.option(
    "--budget",
    type=Budget(of_tenant=True),
    help="GPU-seconds or price of a day or month (UTC), after which its work waits for the next; none if never set.",
)
@click.option(
    "--weight",
    type=click.FloatRange(LIGHTEST, HEAVIEST),
    callback=lambda ctx, param, value: _number(value),
    help="Its share of a busy fleet beside the others' weights; 1 if never set.",
)
@printed(lambda facts: ", ".join(f"{key} {_shown(value)}" for key, value in facts.items()))
@with_session
def set_(opened: Session, name: str, **given: Any) -> dict[str, Any]:
    """Change the limits and the weight of the tenant NAME.

    Only the options given change; `default` resets a limit to the service's own. Limits hold from the next call on,
    the weight from the planner's next step.
    """
    changes = {key: None if value == DEFAULT else value for key, value in given.items() if value is not None}
    if not changes:
        raise click.UsageError("give at least one of the options")
    if not name or "\0" in name:
        raise click.UsageError("NAME must be a text")
    if (changes.get("budget") or {}).get("unit") == "price" and settings_with().prices is None:
        why = "MAGNUS_PRICES is not set here: without it at the planner, a budget in a price is never spent"
        click.echo(f"magnus: {why}", err=True)
    return _tenant_facts(tenant_limits.change_tenant(opened, name, changes))


def _tenants_table(tenants: list[dict[str, Any]]) -> Table:
    rows = ((None if value is None else _shown(value) for value in facts.values()) for facts in tenants)
    return table(("tenant", *LIMITS.values()), rows)


@tenant.command("list")
@printed(_tenants_table)
@with_session
def list_tenants(opened: Session) -> list[dict[str, Any]]:
    """Show every tenant that has a key or a setting.

    An empty limit is the service's default.
    """
    return [_tenant_facts(one) for one in tenant_limits.list_tenants(opened)]


@tenant.command("remove")
@click.argument("name")
@click.option("--cancel", is_flag=True, help="Cancel its requests that wait or run, and its bulk jobs.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@state_dir_option
@printed(lambda facts: f"{facts['tenant']} is removed")
def remove_tenant(state_dir: Path | None, name: str, cancel: bool, yes: bool) -> dict[str, Any]:
    """Delete the tenant NAME and all that is stored of it, after asking.

    Deleted for good: its API keys and the sign-ins with them, limits and weight, webhooks, files, bulk jobs, requests
    with their texts and answers. Usage (`magnus usage`) and the audit stay. The name may be used again.

    While requests wait or run, nothing is deleted without --cancel. The rows go in short transactions, so that a large
    tenant takes minutes and others are served meanwhile; after an interruption run the command again.
    """
    with session(state_dir) as opened:
        held = tenant_removal.holdings(opened, name)
    if not any(asdict(held).values()):
        raise CommandFailed(f"there is no tenant {name}; `magnus tenant list` shows those with a key or a setting")
    if not cancel and (held.unfinished_requests or held.unended_bulk_jobs):
        work = f"{held.unfinished_requests:,} requests that wait or run, and {held.unended_bulk_jobs:,} bulk jobs"
        raise CommandFailed(f"{name} has {work} that have not ended: wait for them, or give --cancel")
    if not yes:
        counts = ", ".join(f"{count:,} {what.replace('_', ' ')}" for what, count in asdict(held).items() if count)
        click.confirm(f"{name} has {counts}. Delete it for good?", abort=True, err=True)
    with session(state_dir) as opened:
        tenant_removal.begin(opened, name)
    with database(state_dir) as engine:
        delete_tenant(engine, name, cancel=cancel)
    return {"tenant": name, **asdict(held)}


def _number(weight: float | None) -> float | None:
    if weight is not None and math.isnan(weight):  # a range check accepts NaN
        raise click.BadParameter("nan is no number")
    return weight


def _tenant_facts(one: StoredTenant) -> dict[str, Any]:
    return {"tenant": one.name, **{name: getattr(one, name) for name in LIMITS}}


def _shown(value: Any) -> str:
    if value is None:
        return DEFAULT
    if isinstance(value, dict):
        return f"{value['amount']:g}{value['unit']}/{value['period']}"
    return value if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else f"{value:,}"
