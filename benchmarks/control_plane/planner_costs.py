"""CPU of a planner's step, in its process and in Postgres.

`python -m benchmarks.control_plane.planner_costs --json F`

Steps of 0.06 s each beside a fleet that exists in the database only, under `fusion` (`planned_steps`).
With `--beside DIR`, the code of another checkout takes a group of steps after each group of this one's, on a database
of its own with the same requests. On a machine that other programs keep busy, all figures are about twice as high.
"""

import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import click
from sqlalchemy import make_url

from benchmarks.control_plane.request_costs import HERE, AnsweringProcess
from benchmarks.harness import Json, Results, json_option, percentile, print_table
from benchmarks.live.fresh_service import roomy_postgres
from cli.hosting.embedded_servers import create_database, embedded_broker, running_server
from cli.hosting.process_commands import ONE_THREAD
from models.connections.schema_upgrade import upgrade

WARM = 60  # steps before the measurement, until as many requests run as later; not tuned
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
        directory.chmod(0o755)  # Postgres runs as another user if we are root
        url, _ = stack.enter_context(roomy_postgres(directory / "postgres", 1))
        broker = stack.enter_context(running_server(embedded_broker(directory / "broker"), directory / "broker.log"))
        checkouts = {"this": HERE} | ({"the other": beside} if beside else {})
        processes = {}
        for number, (name, path) in enumerate(checkouts.items()):
            own_url = make_url(url).set(database=f"costs{number}").render_as_string(hide_password=False)
            create_database(own_url)
            upgrade(own_url)
            environment = {
                "MAGNUS_DATABASE_URL": own_url,
                "MAGNUS_REDIS_URL": broker,
                "BENCHMARK_RATE": str(rate),
                "BENCHMARK_WORKERS": str(workers),
                **ONE_THREAD,
            }
            program = [str(Path(__file__).with_name("planned_steps.py"))]
            processes[name] = stack.enter_context(AnsweringProcess(path, environment, program))
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in processes}
        for process in processes.values():
            process.cpu_ms("steps", WARM)
        for number in range(groups):
            for name in list(taken)[:: 1 if number % 2 else -1]:
                taken[name].append(processes[name].cpu_ms("steps", steps))
    terms = {"rate": rate, "workers": workers, "groups": groups, "steps": steps}
    rows = [{**terms, **described(name, groups_of)} for name, groups_of in taken.items()]
    print_table(rows, COLUMNS)
    results.write(rows)


def described(name: str, groups: list[tuple[float, float]]) -> Json:
    """Summarize the groups of one checkout."""
    parts = {"planner_ms": [own for own, _ in groups], "postgres_ms": [postgres for _, postgres in groups]}
    figures = {part: {"p10": percentile(ms, 0.1), "median": median(ms)} for part, ms in parts.items()}
    return {"code": name, **figures}


if __name__ == "__main__":
    main()
