"""Measures the whole service on one GPU, phase by phase, within the minutes for which one can be had.

    python -m benchmarks.gpu.packages .whl                       # on a machine with network: wheels for the other one
    python -m benchmarks.gpu --packages .whl --out OUT           # on the machine with the GPU, which needs no network
    python -m benchmarks.gpu --packages .whl --out OUT --from field
    python -m benchmarks.gpu --small --out OUT                   # the same phases, small, on a CPU in two minutes

Phases run in order of worth, each in a process of its own, so that a fault of one leaves the others a sound device.
Each writes OUT/PHASE.json after every part that it has measured; an error is written there with its traceback. No part
begins after the budget of its phase, and a phase that takes a third longer is killed with all its processes.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import click
import psutil

from benchmarks.gpu.environment import unpacked
from benchmarks.gpu.phase_plan import NAMED, PHASES, ROOT, Phase

OVERTIME = 4 / 3  # a phase's process ends at this many times its budget: its last part may begin at the budget's end


@click.command(help=__doc__)
@click.option("--device", type=click.Choice(["cuda", "cpu"]), help="cuda; with --small cpu.")
@click.option("--small", is_flag=True, help="Sizes for a CPU.")
@click.option("--packages", type=click.Path(exists=True, path_type=Path), help="A folder of wheels, or of packages.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The folder for the results.")
@click.option("--work", type=click.Path(path_type=Path), help="A folder for models; OUT.work if unset.")
@click.option("--from", "first", type=click.Choice([*NAMED]), help="Begin with this phase; earlier results are kept.")
@click.option("--only", multiple=True, type=click.Choice([*NAMED]), help="These phases alone.")
@click.option("--minutes", default=13.0, show_default=True, help="Start no phase whose budget would end later.")
@click.option("--commit", help="The commit of this tree, if it lies there without git.")
def main(
    device: str | None,
    small: bool,
    packages: Path | None,
    out: Path,
    work: Path | None,
    first: str | None,
    only: tuple[str, ...],
    minutes: float,
    commit: str | None,
) -> None:
    """Run the chosen phases and print a line for each; exit 1 if a part failed."""
    out, work = out.absolute(), (work or out.with_name(f"{out.name}.work")).absolute()
    ends_at = monotonic() + 60 * minutes
    out.mkdir(parents=True, exist_ok=True)
    paths = [str(ROOT), *([] if packages is None else [str(unpacked(packages, work / "packages"))])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]).strip(":")}
    options = ["--device", device or ("cpu" if small else "cuda"), "--work", str(work), "--out", str(out)]
    options += ["--small"] * small + (["--commit", commit] if commit else [])
    failed = 0
    for phase in chosen(first, only, small):
        if monotonic() + phase.budget_s > ends_at:
            click.echo(f"{phase.name}: not begun, because its {phase.budget_s} s are no longer left")
            continue
        (out / f"{phase.name}.json").unlink(missing_ok=True)
        line, errors = told(out / f"{phase.name}.json", run(phase, options, environment))
        click.echo(f"{phase.name}: {line}")
        failed += errors
    if failed:
        sys.exit(1)


def chosen(first: str | None, only: Sequence[str], small: bool) -> list[Phase]:
    """Return the phases named in `only`, or those from `first` on, of which --small leaves some out."""
    if only:
        return [phase for phase in PHASES if phase.name in only]
    return [phase for phase in PHASES[PHASES.index(NAMED[first]) if first else 0 :] if phase.small or not small]


def run(phase: Phase, options: Sequence[str], environment: dict[str, str]) -> str:
    """Run a phase in a process of its own; returns what went wrong with the process, or ""."""
    command = [sys.executable, "-m", "benchmarks.gpu.run_phase", phase.name, *options]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=sys.stderr)
    try:
        code = process.wait(OVERTIME * phase.budget_s)
    except subprocess.TimeoutExpired:
        _kill_with_children(process)
        return f"killed after {OVERTIME * phase.budget_s:.0f} s"
    return f"its process ended with {code}" if code else ""


def told(file: Path, fault: str) -> tuple[str, int]:
    """Return a line about a phase's results, and the number of its errors; a fault of the process is one, too."""
    figures: dict[str, Any] = json.loads(file.read_text())["figures"] if file.exists() else {"parts": {}}
    wrong = {name: part["error"] for name, part in figures["parts"].items() if "error" in part}
    wrong |= {name: figures["error"] for name in ("phase",) if figures.get("error")}
    lines = [f"{len(figures['parts'])} parts in {figures.get('seconds', 0):.0f} s"]
    lines += [f"left out for lack of time: {', '.join(figures['left_out'])}"] if figures.get("left_out") else []
    lines += [f"{name}: {error.strip().splitlines()[-1]}" for name, error in wrong.items()]
    return "\n  ".join([*lines, *filter(None, [fault])]), len(wrong) + bool(fault)


def _kill_with_children(process: subprocess.Popen[bytes]) -> None:
    """Kill a phase's processes; those of a service are sessions of their own, so they are found as descendants."""
    for one in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    process.wait()


if __name__ == "__main__":
    main()
