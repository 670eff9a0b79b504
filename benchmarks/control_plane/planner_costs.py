"""CPU of a planner's step, in its process and in Postgres.

`python -m benchmarks.control_plane.planner_costs --json F`

Steps of 0.06 s each beside a fleet that exists in the database only, under `fusion` (`planned_steps`).
With `--beside DIR`, the code of another checkout takes a group of steps after each group of this one's, on a database
of its own with the same requests. On a machine that other programs keep busy, all figures are about twice as high.
"""

import tempfile
from contextlib import ExitStack
from pathlib import Path

import click
from sqlalchemy import make_url

from benchmarks.control_plane.request_costs import AnsweringProcess, of_checkouts, of_groups
from benchmarks.experiment import Experiment
from benchmarks.harness import Json, Results, json_option, print_table
from benchmarks.live.fresh_service import roomy_postgres
from cli.hosting.embedded_servers import create_database, embedded_broker, running_server
from cli.hosting.process_commands import ONE_THREAD
from models.schema_upgrade import upgrade

PARTS = ("planner_ms", "postgres_ms")
WARM = 60  # after these steps as many requests run as during the measurement; not tuned
COLUMNS = {
    "code of": "code",
    "requests/s": "rate",
    "workers": "workers",
    "planner ms, p10": "planner_ms.p10:.2f",
    "planner ms, median": "planner_ms.median:.2f",
    "Postgres ms, p10": "postgres_ms.p10:.2f",
    "Postgres ms, median": "postgres_ms.median:.2f",
}


@click.command(help=__doc__)
@click.option("--groups", default=24, show_default=True)
@click.option("--steps", default=25, show_default=True, help="Steps of a group.")
@click.option("--rate", default=100, show_default=True, help="Requests a second.")
@click.option("--workers", default=2, show_default=True)
@click.option("--beside", type=click.Path(exists=True, path_type=Path), help="Another checkout of this repository.")
@json_option
def main(groups: int, steps: int, rate: int, workers: int, beside: Path | None, results: Results) -> None:
    """Measure, print and write."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="magnus-costs-")))
        url, _ = stack.enter_context(roomy_postgres(1))
        broker = stack.enter_context(running_server(embedded_broker(directory / "broker"), directory / "broker.log"))

        def environment(number: int) -> dict[str, str]:
            own_url = make_url(url).set(database=f"costs{number}").render_as_string(hide_password=False)
            create_database(own_url)
            upgrade(own_url)
            fleet = {"BENCHMARK_RATE": str(rate), "BENCHMARK_WORKERS": str(workers)}
            return {"MAGNUS_DATABASE_URL": own_url, "MAGNUS_REDIS_URL": broker, **fleet, **ONE_THREAD}

        def stepped(process: AnsweringProcess, count: int) -> Json:
            return dict(zip(PARTS, process.cpu_ms("steps", count), strict=True))

        program = [str(Path(__file__).with_name("planned_steps.py"))]
        programs = of_checkouts(beside, environment, program)
        processes = {name: stack.enter_context(process) for name, process in programs.items()}
        for process in processes.values():
            process.cpu_ms("steps", WARM)
        runs = list(Experiment({"steps": steps}, processes, stepped).runs(groups))
    rows = [{"rate": rate, "workers": workers, "steps": steps, **row} for row in of_groups(runs, PARTS)]
    print_table(rows, COLUMNS)
    results.write(rows)


if __name__ == "__main__":
    main()
