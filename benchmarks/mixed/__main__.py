"""Interactive requests beside a bulk job, simulated and, with `--live`, on a real service.

`python -m benchmarks.mixed [--live] [--json FILE]`; `--makespan` measures a bulk job alone against its ideal makespan,
with `--model` on a real model against the time of its engine alone; `--windows` counts the jobs that end within windows
that were called feasible.
"""

import click

from benchmarks.harness import Json, Results, json_option, print_table
from benchmarks.live.fresh_service import ServiceOptions
from benchmarks.mixed.job_alone import MODEL_ANSWER, MODEL_MEMORY, MODEL_PROMPT, live_makespan, simulated_makespan
from benchmarks.mixed.kept_windows import live_windows, simulated_windows
from benchmarks.mixed.live_mix import measure_live
from benchmarks.mixed.simulated_mix import Mix, measure
from cli.hosting.service_access import POLICIES, settings_with
from cli.option_types import CommaSeparated

LIVE_RATE = 8.0  # interactive requests a second, 4 % of the rate that one worker on two cores serves
PACED_WORKERS, PACED_MACHINE = 4, "v100"
JOBS, LIVE_JOBS = 200, 10  # the windows of this many jobs are judged
POLICY_LIST = CommaSeparated(click.Choice(POLICIES))


@click.command(help=__doc__)
@click.option("--policies", type=POLICY_LIST, default="fusion,magnus", show_default=True)
@click.option("--loads", type=CommaSeparated(float), default="0.3,0.6", show_default=True, help="Of capacity.")
@click.option("--live", is_flag=True, help="Also on a real service, for some three minutes.")
@click.option("--phase-s", default=25.0, show_default=True, help="Seconds of each of the three live phases.")
@click.option("--lines", default=16000, show_default=True, help="Lines of the live bulk job.")
@click.option("--workers", default=1, show_default=True, help="Live workers; for a makespan at least 2.")
@click.option("--makespan", is_flag=True, help="Only a bulk job alone, simulated, on paced workers and on ours.")
@click.option("--model", help="With --makespan: a fetched model's name, whose lines are real instructions.")
@click.option("--windows", is_flag=True, help="Only jobs with windows, simulated or with --live on a service.")
@click.option("--jobs", type=int, help=f"With --windows: {JOBS} simulated, {LIVE_JOBS} live.")
@json_option
def main(
    policies: list[str],
    loads: list[float],
    live: bool,
    phase_s: float,
    lines: int,
    workers: int,
    makespan: bool,
    model: str | None,
    windows: bool,
    jobs: int | None,
    results: Results,
) -> None:
    """Measure what a bulk job costs interactive requests, and how much of the spare capacity it uses."""
    if makespan:
        rows = [of_model(policies[0], lines, model)] if model else makespans(policies, lines, workers)
        print_rows("makespan of a bulk job", rows)
        results.write({"makespan": rows})
        return
    if windows:
        rows = [simulated_windows(name, jobs or JOBS, 1) for name in policies if not live]
        rows += [live_windows(name, jobs or LIVE_JOBS, workers, 1) for name in policies[:1] if live]
        print_rows("jobs whose window was called feasible", rows)
        results.write({"windows": rows})
        return
    mixes = [Mix(name, load, 1) for name in policies for load in loads]
    figures: Json = {}
    if mixes:
        figures["simulated"] = measure(mixes)
        print_rows("simulated", figures["simulated"])
    if live:
        figures["live"] = [measure_live(name, LIVE_RATE, phase_s, lines, workers, 1) for name in policies[:1]]
        print_rows("live", figures["live"])
    results.write(figures)


def makespans(policies: list[str], lines: int, workers: int) -> list[Json]:
    """Measure a job alone: simulated under each policy, and live under the first one, on paced workers and on ours."""
    fleets = [(PACED_WORKERS, PACED_MACHINE), (max(2, workers), None)]
    options = [ServiceOptions(workers=number, kv_budget="64MiB", paced=machine) for number, machine in fleets]
    return [
        *(simulated_makespan(name, lines, 1) for name in policies),
        *(live_makespan(policies[0], lines, fleet, 1) for fleet in options),
    ]


def of_model(policy: str, lines: int, model: str) -> Json:
    """Measure a job alone on one worker with a real model."""
    directory, memory = settings_with(model=model).model, f"{MODEL_MEMORY >> 20}MiB"
    options = ServiceOptions(1, memory, directory, MODEL_PROMPT, MODEL_ANSWER)
    return live_makespan(policy, lines, options, 1, "instructions")


def print_rows(title: str, rows: list[Json]) -> None:
    """Print a table whose columns are all figures that any row has."""
    print_table(rows, list(dict.fromkeys(name for row in rows for name in row)), title)


if __name__ == "__main__":
    main()
