"""`magnus keys`: creates, lists and revokes API keys, which are shown once and stored as digests."""

import json
from pathlib import Path

import click
from rich.table import Table

from cli.command_errors import CommandFailed
from cli.database_access import session
from cli.options import json_option, state_dir_option
from cli.terminal import make_console
from models import api_keys


@click.group()
def keys() -> None:
    """Create, list and revoke API keys."""


@keys.command()
@click.option("--name", required=True, help="Who or what uses it.")
@click.option("--tenant", default="default", show_default=True, help="Keys of one tenant see the same requests.")
@json_option
@state_dir_option
def create(name: str, tenant: str, as_json: bool, state_dir: Path | None) -> None:
    """Make a key and print it; nobody can read it again."""
    with session(state_dir) as opened:
        row, key = api_keys.create(opened, name=name, tenant=tenant)
    click.echo(json.dumps({"name": name, "tenant": tenant, "prefix": row.prefix, "key": key}) if as_json else key)


@keys.command("list")
@json_option
@state_dir_option
def list_(as_json: bool, state_dir: Path | None) -> None:
    """Show all keys by their first characters."""
    with session(state_dir) as opened:
        rows = api_keys.list_all(opened)
    if as_json:
        facts = [
            {
                "prefix": row.prefix,
                "name": row.name,
                "tenant": row.tenant,
                "created_at": row.created_at.timestamp(),
                "revoked_at": row.revoked_at.timestamp() if row.revoked_at else None,
            }
            for row in rows
        ]
        click.echo(json.dumps(facts))
        return
    table = Table("prefix", "name", "tenant", "created", "revoked")
    for row in rows:
        revoked = f"{row.revoked_at:%Y-%m-%d %H:%M}" if row.revoked_at else ""
        table.add_row(row.prefix, row.name, row.tenant, f"{row.created_at:%Y-%m-%d %H:%M}", revoked)
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
