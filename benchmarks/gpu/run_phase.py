"""Runs one phase and writes its figures after each part: `benchmarks.gpu` starts it as a process of its own."""

import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from time import monotonic
from typing import Any

import click

from benchmarks.gpu.phase_plan import NAMED, Parts, Terms
from benchmarks.harness import Json, Results, say


@click.command()
@click.argument("name")
@click.option("--device", required=True)
@click.option("--small", is_flag=True)
@click.option("--work", type=click.Path(path_type=Path), required=True)
@click.option("--out", type=click.Path(path_type=Path), required=True)
@click.option("--commit")
def main(name: str, commit: str | None, **given: Any) -> None:
    """Measure the parts of a phase until its budget is spent."""
    results, terms = Results.at(given["out"] / f"{name}.json"), Terms(name.partition("-")[2], **given)
    results.origin.update({"commit": commit} if commit else {})
    budget_s, began = NAMED[name].budget_s, monotonic()
    terms.work.mkdir(parents=True, exist_ok=True)
    figures: Json = {"device": terms.device, "small": terms.small, "budget_s": budget_s, "parts": {}, "left_out": []}
    try:
        parts: Parts = import_module(f"benchmarks.gpu.{NAMED[name].module}").parts
        for part, measure in parts(terms):
            if monotonic() - began > budget_s:
                figures["left_out"].append(part)
                continue
            figures["parts"][part] = recorded(measure)
            figures["seconds"] = round(monotonic() - began, 1)
            results.write(figures)
            say(f"{name}, {figures['seconds']:g} s: {part}")
    except Exception:  # the phase itself cannot go on, and its figures are kept
        figures["error"] = traceback.format_exc()
    results.write(figures)


def recorded(measure: Callable[[], Any]) -> Json:
    """Return the figures of a part with its seconds, or its error with the traceback."""
    began = monotonic()
    try:
        found: Json = {"figures": measure()}
    except Exception:  # a part that fails must not lose the others
        found = {"error": traceback.format_exc()}
    return found | {"took_s": round(monotonic() - began, 2)}


if __name__ == "__main__":
    main()
