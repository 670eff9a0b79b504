"""`magnus keys`: creates, lists and revokes API keys, which are shown once and stored as digests."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
from rich.table import Table

from cli.command_errors import CommandFailed
from cli.database_access import session
from cli.options import json_option, state_dir_option
from cli.terminal import make_console
from models.tables import ApiKey
from models.tenants import api_keys
from models.tenants.api_keys import DEFAULT_SCOPES, Scope

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
        facts = {**_facts(row), "key": key}
    click.echo(json.dumps(facts) if as_json else key)


@keys.command("list")
@json_option
@state_dir_option
def list_(as_json: bool, state_dir: Path | None) -> None:
    """Show all keys by their first characters."""
    with session(state_dir) as opened:
        rows = api_keys.list_all(opened)
    if as_json:
        click.echo(json.dumps([_facts(row) for row in rows]))
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


def _facts(row: ApiKey) -> dict[str, object]:
    return {
        "prefix": row.prefix,
        "name": row.name,
        "tenant": row.tenant,
        "scopes": row.scopes,
        "created_at": row.created_at.timestamp(),
        "expires_at": row.expires_at.timestamp() if row.expires_at else None,
        "revoked_at": row.revoked_at.timestamp() if row.revoked_at else None,
    }
