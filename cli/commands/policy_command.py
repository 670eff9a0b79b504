"""`magnus policy`: prints or changes the scheduling policy in force."""

from pathlib import Path

import click

from cli.database_access import transaction
from cli.options import POLICIES, settings_with, state_dir_option
from models.planning import planner_state


@click.group()
def policy() -> None:
    """Show or change the scheduling policy of a running service."""


@policy.command()
@state_dir_option
def get(state_dir: Path | None) -> None:
    """Print the policy in force."""
    with transaction(state_dir) as connection:
        stored = planner_state.planner_inputs(connection).policy
    click.echo(stored or settings_with().policy)


@policy.command("set")
@click.argument("name", type=click.Choice(POLICIES))
@state_dir_option
def set_(name: str, state_dir: Path | None) -> None:
    """Put a policy in force: the planner follows within a tick and feeds it everything that waits."""
    with transaction(state_dir) as connection:
        planner_state.set_policy(connection, name)
    click.echo(f"policy {name}")
