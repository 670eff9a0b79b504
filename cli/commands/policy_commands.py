"""`magnus policy` and `magnus lab`: the policy in force, and the last minutes' requests simulated under each policy."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from time import monotonic

import click
from rich.table import Table

from cli.hosting.service_access import POLICIES, settings_with, state_dir_option, transaction
from cli.output import CommandFailed, json_option, print_result, table
from models import planner_state
from models.planning.served_work import MeasuredWork, NothingToPlay, measured_work
from processes.planner_rules import planner_rules
from scheduling.simulation.policy_lab import FEW, LabFigures, Overheads, calibrate, play, policies_to_play


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
    """Put a policy in force.

    The planner changes to it within a tick and gives it all waiting requests.
    """
    with transaction(state_dir) as connection:
        planner_state.set_policy(connection, name)
    click.echo(f"policy {name}")


@click.command()
@click.option(
    "--minutes", type=click.FloatRange(0.1, 1440), default=10.0, show_default=True, help="Minutes to look back."
)
@click.option(
    "--policy", "only", type=click.Choice(POLICIES), multiple=True, help="Simulate only this policy; repeatable."
)
@click.option("--seconds", type=click.FloatRange(1, 3600), default=60.0, show_default=True, help="Longest computation.")
@json_option
@state_dir_option
def lab(minutes: float, only: tuple[str, ...], seconds: float, as_json: bool, state_dir: Path | None) -> None:
    """Simulate the last minutes' requests under every policy.

    The simulator runs the service's own policies on the workers that live now, with the costs that the workers learned
    and the lengths that the answers had. The row `measured` has the real figures of the service; compare it with the
    row of the policy in force.
    """
    settings = settings_with(state_dir=state_dir)
    try:
        with transaction(state_dir) as connection:
            served = measured_work(connection, 60 * minutes, settings.lease_s)
    except NothingToPlay as error:
        raise CommandFailed(f"nothing to play: {error}") from error
    in_force = served.policy or settings.policy
    names = only or policies_to_play(in_force)
    bounds = planner_rules(settings).settings
    until = monotonic() + seconds
    overheads = calibrate(in_force, served.work, bounds, _share(until, len(names) + 1))
    played = {
        name: play(name, served.work, bounds, overheads, _share(until, len(names) - at))
        for at, name in enumerate(names)
    }
    facts = {
        "model": served.model,
        "policy": in_force,
        "window_s": served.window_s,
        "overheads": asdict(overheads),
        "measured": asdict(served.measured),
        "policies": {name: asdict(figures) for name, figures in played.items()},
    }
    print_result(facts, as_json, lambda _: _lab_table(served, in_force, overheads, played))


def _share(until: float, shares: int) -> Callable[[], bool]:
    """Return a function that returns True during the first of `shares` equal parts of the time until `until`."""
    now = monotonic()
    deadline = now + (until - now) / shares
    return lambda: monotonic() < deadline


def _lab_table(served: MeasuredWork, in_force: str, overheads: Overheads, played: dict[str, LabFigures]) -> Table:
    rows = [("[bold]measured", *_cells(served.measured))]
    for name, figures in sorted(played.items(), key=lambda one: (one[1].unanswered, one[1].mean_s)):
        rows.append((f"[bold]{name} (in force)" if name == in_force else name, *_cells(figures)))
    few = f"; {FEW} requests or more would tell policies apart" if len(served.work.counted) < FEW else ""
    return table(
        ("policy", "requests/s", "mean s", "P50 s", "P99 s", "within 5 × alone", "not answered"),
        rows,
        title=f"{len(served.work.counted):,} requests for {served.model} in {served.window_s:,.0f} s",
        caption=f"in the median of them, service takes {overheads.slowdown:.2f} times as long as the engines' "
        f"steps, and begins {overheads.delay_s:.2f} s later than it could{few}",
    )


def _cells(figures: LabFigures) -> tuple[str | None, ...]:
    times = (f"{seconds:.2f}" for seconds in (figures.mean_s, figures.p50_s, figures.p99_s))
    unanswered = f"{figures.unanswered:,}" if figures.unanswered else None
    return (f"{figures.requests_per_s:.2f}", *times, f"{figures.goodput:.0%}", unanswered)
