"""`magnus profile`: measures the served model's speed on a device and fits SCLS's serving time curves (Eq. 3-4)."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
from pydantic import ByteSize
from rich.console import Group
from rich.table import Table

from cli.fetching.gguf_directories import convert_once
from cli.hosting.service_access import settings_with, state_dir_option, transaction
from cli.output import CommandFailed, json_option, print_result, table
from extras import load
from models.planning import live_fleet
from scheduling.costs import ProfiledCurves, ServingCurves


@click.command()
@click.option("--device", default="auto", show_default=True, help="cpu, cuda:0, …; auto: the first GPU, else the CPU.")
@click.option("--model", help="Directory, hub id or GGUF file; MAGNUS_MODEL if not given.")
@click.option("--kv-budget", help="KV cache budget that bounds what is measured, for example 20GiB.")
@click.option("--quick", is_flag=True, help="Few small batches: seconds instead of minutes.")
@click.option("--worker", help="Store the curves as those of this worker of the running service.")
@json_option
@state_dir_option
def profile(
    device: str,
    model: str | None,
    kv_budget: str | None,
    quick: bool,
    worker: str | None,
    as_json: bool,
    state_dir: Path | None,
) -> None:
    """Measure the model's speed on a device and fit its time curves.

    Prefill and decoding are measured over batch sizes and lengths; SCLS's serving time curves are fitted to them.
    """
    settings = settings_with(model=model, kv_budget=kv_budget, state_dir=state_dir)
    convert_once(settings.model)
    speed = load("cli.checks.device_speed", "`magnus profile`")
    facts, curves = speed.measured_speed(settings, device, quick)
    if worker:
        with transaction(state_dir) as connection:
            if not live_fleet.set_curves(connection, worker, ProfiledCurves(curves, quick)):
                raise CommandFailed(f"the service knows no worker {worker}; `magnus status` shows how many there are")
    print_result(facts, as_json, lambda facts: _report(facts, curves))


def _report(facts: dict[str, Any], curves: ServingCurves) -> Group:
    return Group(
        f"{facts['model']} on {facts['device']}: Δ = {facts['delta_bytes']:,} bytes a token, "
        f"Θ = {ByteSize(facts['theta_bytes']).human_readable()}",
        _fit_table("prefill", "length", facts["prefills"], curves.prefill_s),
        _fit_table("decoding step", "cached tokens", facts["decode_steps"], curves.decode_step_s),
        f"p1 … p4 (Eq. 3): {_shown(curves.prefill)}\nd1 … d4 (Eq. 4): {_shown(curves.decode)}",
    )


def _fit_table(
    title: str, tokens: str, timed: Iterable[tuple[int, float, float]], fitted: Callable[..., float]
) -> Table:
    rows = (
        (size, f"{length:g}", f"{seconds * 1e3:.2f}", f"{fitted(size, length) * 1e3:.2f}")
        for size, length, seconds in timed
    )
    return table(("batch size", tokens, "measured, ms", "fitted, ms"), rows, title=title, title_justify="left")


def _shown(coefficients: tuple[float, ...]) -> str:
    return "  ".join(f"{coefficient:.3g}" for coefficient in coefficients)
