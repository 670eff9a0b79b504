"""`magnus keys`: creates, lists and revokes API keys, which are shown once and stored as digests."""

import json
import math
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from cli.output import CommandFailed, make_console
from cli.service_access import json_option, session, state_dir_option
from models.tables import ApiKey
from models.tenants import api_keys, tenant_limits
from models.tenants.api_keys import DEFAULT_SCOPES, Scope
from models.tenants.tenant_tables import Tenant as StoredTenant

UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
LONGEST_DAYS = 36_500  # a century; Postgres would hold more


class Expiry(click.ParamType[datetime | timedelta]):
    """A duration such as 90d, or an instant such as 2027-01-31 or 2027-01-31T12:00+01:00, UTC without an offset."""

    name = "DURATION|DATE"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime | timedelta:
        """Parse; a duration is counted by the database's clock."""
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
        return instant if instant.tzinfo else instant.replace(tzinfo=UTC)


class Scopes(click.ParamType[frozenset[Scope]]):
    """Comma-separated scopes."""

    name = "SCOPES"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> frozenset[Scope]:
        """Parse."""
        try:
            return frozenset(Scope(name.strip()) for name in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r}: choose among {', '.join(Scope)}, separated by commas")


@click.group()
def keys() -> None:
    """Create, list and revoke API keys."""


@keys.command()
@click.option("--name", required=True, help="Who or what uses it.")
@click.option("--tenant", default="default", show_default=True, help="Keys of one tenant see the same requests.")
@click.option(
    "--scopes",
    type=Scopes(),
    default=",".join(sorted(DEFAULT_SCOPES)),
    show_default=True,
    help="submit: make and change requests; read: see them; operate: see every tenant's usage.",
)
@click.option("--expires", type=Expiry(), help="90d, 12h, or a date; never if not given.")
@json_option
@state_dir_option
def create(
    name: str,
    tenant: str,
    scopes: frozenset[Scope],
    expires: datetime | timedelta | None,
    as_json: bool,
    state_dir: Path | None,
) -> None:
    """Make a key and print it; nobody can read it again."""
    with session(state_dir) as opened:
        row, key = api_keys.create(opened, name=name, tenant=tenant, scopes=scopes, expires=expires)
        facts = {**_key_facts(row), "key": key}
    click.echo(json.dumps(facts) if as_json else key)


@keys.command("list")
@json_option
@state_dir_option
def list_keys(as_json: bool, state_dir: Path | None) -> None:
    """Show all keys by their first characters."""
    with session(state_dir) as opened:
        rows = api_keys.list_all(opened)
    if as_json:
        click.echo(json.dumps([_key_facts(row) for row in rows]))
        return
    table = Table("prefix", "name", "tenant", "scopes", "created", "expires", "revoked")
    for row in rows:
        instants = (
            "" if at is None else f"{at:%Y-%m-%d %H:%M}" for at in (row.created_at, row.expires_at, row.revoked_at)
        )
        table.add_row(row.prefix, row.name, row.tenant, " ".join(row.scopes), *instants)
    make_console().print(table)


@keys.command()
@click.argument("prefix")
@state_dir_option
def revoke(prefix: str, state_dir: Path | None) -> None:
    """Revoke the key that begins with PREFIX, as `magnus keys list` shows it; a whole key will do, too."""
    with session(state_dir) as opened:
        revoked = api_keys.revoke(opened, prefix)
    if not revoked:
        raise CommandFailed(
            f"no valid key begins with {prefix[: api_keys.READABLE_CHARACTERS]}; `magnus keys list` shows them all"
        )
    click.echo(f"revoked {prefix[: api_keys.READABLE_CHARACTERS]}")


def _key_facts(row: ApiKey) -> dict[str, object]:
    return {
        "prefix": row.prefix,
        "name": row.name,
        "tenant": row.tenant,
        "scopes": row.scopes,
        "created_at": row.created_at.timestamp(),
        "expires_at": row.expires_at.timestamp() if row.expires_at else None,
        "revoked_at": row.revoked_at.timestamp() if row.revoked_at else None,
    }


MOST = 2**31 - 1  # what the columns hold; of tokens more
MOST_TOKENS = 2**62
LIGHTEST, HEAVIEST = 0.001, 1000.0  # a million to one; any bound does that keeps a share from being lost in rounding
DEFAULT = "default"


class Limit(click.ParamType[int | str]):
    """A number of at least 1, or `default`."""

    name = "NUMBER|default"

    def __init__(self, most: int) -> None:
        self._most = most

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """Parse."""
        if value == DEFAULT:
            return DEFAULT
        text = str(value)
        if not text.isascii() or not text.isdigit() or not 1 <= int(text[:20]) <= self._most:
            self.fail(f"{text!r} is neither a number from 1 to {self._most} nor {DEFAULT!r}")
        return int(text)


@click.group()
def tenant() -> None:
    """Set and list what tenants may send, and their weights."""


@tenant.command("set")
@click.argument("name")
@click.option("--requests-per-minute", type=Limit(MOST), help="Requests of all of its keys together.")
@click.option("--queued-requests", type=Limit(MOST), help="Most requests that it may have in the queue.")
@click.option("--queued-tokens", type=Limit(MOST_TOKENS), help="Most tokens of their prompts together.")
@click.option(
    "--weight",
    type=click.FloatRange(LIGHTEST, HEAVIEST),
    callback=lambda ctx, param, value: _number(value),
    help="Its share of a busy fleet beside the others' weights; 1 if never set.",
)
@json_option
@state_dir_option
def set_(name: str, as_json: bool, state_dir: Path | None, **given: Any) -> None:
    """Change what is given for the tenant NAME; `default` takes a limit back to the service's own.

    Limits hold from the next call on, the weight from the planner's next step.
    """
    changes = {key: None if value == DEFAULT else value for key, value in given.items() if value is not None}
    if not changes:
        raise click.UsageError("give at least one of the options")
    if not name or "\0" in name:
        raise click.UsageError("NAME must be a text")
    with session(state_dir) as opened:
        facts = _tenant_facts(tenant_limits.change_tenant(opened, name, changes))
    click.echo(json.dumps(facts) if as_json else ", ".join(f"{key} {_shown(value)}" for key, value in facts.items()))


@tenant.command("list")
@json_option
@state_dir_option
def list_tenants(as_json: bool, state_dir: Path | None) -> None:
    """Show every tenant that has a key or a setting; an empty limit is the service's default."""
    with session(state_dir) as opened:
        tenants = [_tenant_facts(one) for one in tenant_limits.list_tenants(opened)]
    if as_json:
        click.echo(json.dumps(tenants))
        return
    table = Table("tenant", "weight", "requests a minute", "queued requests", "queued tokens")
    for facts in tenants:
        table.add_row(*("" if value is None else _shown(value) for value in facts.values()))
    make_console().print(table)


def _number(weight: float | None) -> float | None:
    if weight is not None and math.isnan(weight):  # which no range excludes
        raise click.BadParameter("nan is no number")
    return weight


def _tenant_facts(one: StoredTenant) -> dict[str, Any]:
    return {
        "tenant": one.name,
        "weight": one.weight,
        "requests_per_minute": one.requests_per_minute,
        "queued_requests": one.queued_requests,
        "queued_tokens": one.queued_tokens,
    }


def _shown(value: Any) -> str:
    if value is None:
        return DEFAULT
    return value if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else f"{value:,}"
