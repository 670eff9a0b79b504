"""`magnus tenant`: what an operator sets for a tenant: its limits, and its weight beside the others."""

import json
import math
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from cli.database_access import session
from cli.options import json_option, state_dir_option
from cli.terminal import make_console
from models.tenants import tenant_limits
from models.tenants.tenant_tables import Tenant as StoredTenant

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
        facts = _facts(tenant_limits.change_tenant(opened, name, changes))
    click.echo(json.dumps(facts) if as_json else ", ".join(f"{key} {_shown(value)}" for key, value in facts.items()))


@tenant.command("list")
@json_option
@state_dir_option
def list_(as_json: bool, state_dir: Path | None) -> None:
    """Show every tenant that has a key or a setting; an empty limit is the service's default."""
    with session(state_dir) as opened:
        tenants = [_facts(one) for one in tenant_limits.list_tenants(opened)]
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


def _facts(one: StoredTenant) -> dict[str, Any]:
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
