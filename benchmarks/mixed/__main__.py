"""Interactive requests beside a bulk job, simulated and, with `--live`, on a real service.

`python -m benchmarks.mixed [--live] [--json FILE]`; `--makespan` measures a bulk job alone against its ideal makespan.
"""

import click

from benchmarks.harness import Json, Results, json_option, print_table
from benchmarks.mixed.live_mix import live_makespan, measure_live, simulated_makespan
from benchmarks.mixed.simulated_mix import Mix, measure
from cli.option_types import CommaSeparated
from cli.service_access import POLICIES

LIVE_RATE = 8.0  # interactive requests a second: 0.04 of what one worker on two cores serves
POLICY_LIST = CommaSeparated(click.Choice(POLICIES))


@click.command(help=__doc__)
@click.option("--policies", type=POLICY_LIST, default="fusion,magnus", show_default=True)
@click.option("--loads", type=CommaSeparated(float), default="0.3,0.6", show_default=True, help="Of capacity.")
@click.option("--live", is_flag=True, help="Also on a real service, for some three minutes.")
@click.option("--phase-s", default=25.0, show_default=True, help="Seconds of each of the three live phases.")
@click.option("--lines", default=16000, show_default=True, help="Lines of the live bulk job.")
@click.option("--workers", default=1, show_default=True, help="Live workers; for a makespan at least 2.")
@click.option("--makespan", is_flag=True, help="Only a bulk job alone, simulated, on paced workers and on ours.")
@json_option
def main(
    policies: list[str],
    loads: list[float],
    live: bool,
    phase_s: float,
    lines: int,
    workers: int,
    makespan: bool,
    results: Results,
) -> None:
    """Measure what a bulk job costs interactive requests, and how much of the spare capacity it uses."""
    if makespan:
        rows = [simulated_makespan(name, lines, 1) for name in policies]
        rows += [live_makespan(policies[0], lines, max(2, workers), paced, 1) for paced in (True, False)]
        print_rows("makespan of a bulk job", rows)
        results.write({"makespan": rows})
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


def print_rows(title: str, rows: list[Json]) -> None:
    """Print a table whose columns are all figures that any row has."""
    print_table(rows, list(dict.fromkeys(name for row in rows for name in row)), title)


if __name__ == "__main__":
    main()
