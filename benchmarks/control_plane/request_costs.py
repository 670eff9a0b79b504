"""CPU of a submission and of a poll, in the web process and in Postgres.

`python -m benchmarks.control_plane.request_costs --json F`

Without gunicorn and its parsing of HTTP, one call after the other. With `--beside DIR`, the code of another checkout
answers a group of calls after each group of this one's, on the same Postgres: figures of two runs one after the other
differ by more than what is compared. On a machine that other programs keep busy, all figures are about twice as high.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import click
import psutil

from benchmarks.experiment import Experiment
from benchmarks.harness import Json, Results, json_option, percentile, print_table
from benchmarks.live.fresh_service import roomy_postgres
from benchmarks.service_start import NO_RATE_LIMIT
from cli.hosting.process_commands import ONE_THREAD
from models.connections.session import make_engine, make_sessions
from models.tenants import api_keys

HERE = Path(__file__).parents[2]
ANSWERS = ("-m", "gevent.monkey", str(Path(__file__).with_name("answered_calls.py")))
KINDS = ("submission", "poll")
WARM = 60  # calls before the measurement, which fill caches and prepare statements; not tuned
NO_LIMITS = {f"MAGNUS_TENANT_QUEUED_{of}": str(10**9) for of in ("REQUESTS", "TOKENS")} | NO_RATE_LIMIT
COLUMNS = {
    "code of": "code",
    "web ms, p10": "web_ms.p10:.2f",
    "web ms, median": "web_ms.median:.2f",
    "Postgres ms, p10": "postgres_ms.p10:.2f",
    "Postgres ms, median": "postgres_ms.median:.2f",
}


class AnsweringProcess:
    """A process that answers calls with the code of one checkout."""

    def __init__(self, checkout: Path, environment: dict[str, str], program: Sequence[str] = ANSWERS) -> None:
        command = [sys.executable, "-P", *program]
        given = os.environ | environment | {"PYTHONPATH": str(checkout)}
        self._process = subprocess.Popen(
            command, cwd=checkout, env=given, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> "AnsweringProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def cpu_ms(self, kind: str, calls: int) -> Any:
        """Let the process answer `calls` calls; returns the CPU milliseconds a call, as its program writes them."""
        if self._process.stdin is None or self._process.stdout is None:
            raise AssertionError("it has no pipes")
        self._process.stdin.write(f"{kind} {calls}\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def cpu_ms_of(postgres: int) -> float:
    """Return the CPU milliseconds of Postgres and its processes so far; Linux only."""
    processes = [postgres, *(child.pid for child in psutil.Process(postgres).children())]
    return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in processes) / 1e6


@click.command(help=__doc__)
@click.option("--groups", default=24, show_default=True)
@click.option("--calls", default=25, show_default=True, help="Calls of a group.")
@click.option("--beside", type=click.Path(exists=True, path_type=Path), help="Another checkout of this repository.")
@json_option
def main(groups: int, calls: int, beside: Path | None, results: Results) -> None:
    """Measure, print and write."""
    with ExitStack() as stack:
        url, postgres = stack.enter_context(roomy_postgres(1))
        with make_sessions(make_engine(url, pool_size=1, name="benchmark")).begin() as session:
            _, key = api_keys.create(session, name="benchmark", tenant="acme")
        environment = {"MAGNUS_DATABASE_URL": url, "BENCHMARK_KEY": key, **NO_LIMITS, **ONE_THREAD}
        programs = of_checkouts(beside, lambda _: environment)
        processes = {name: stack.enter_context(process) for name, process in programs.items()}

        def answered(process: AnsweringProcess, kind: str) -> Json:
            before = cpu_ms_of(postgres)
            web_ms = process.cpu_ms(kind, calls)
            return {"web_ms": web_ms, "postgres_ms": (cpu_ms_of(postgres) - before) / calls}

        for kind in KINDS:
            for process in processes.values():
                process.cpu_ms(kind, WARM)
        runs = list(Experiment({kind: kind for kind in KINDS}, processes, answered).runs(groups))
    rows = of_groups(runs, ("web_ms", "postgres_ms"))
    print_table(rows, {"call": "workload", **COLUMNS})
    results.write(rows)


def of_checkouts(
    beside: Path | None, environment: Callable[[int], dict[str, str]], program: Sequence[str] = ANSWERS
) -> dict[str, AnsweringProcess]:
    """Start the program with this checkout's code, and with that of `beside`; `environment` is called with 0 and 1."""
    checkouts = {"this": HERE} | ({"the other": beside} if beside else {})
    return {
        name: AnsweringProcess(path, environment(number), program)
        for number, (name, path) in enumerate(checkouts.items())
    }


def of_groups(runs: Sequence[Json], parts: Sequence[str]) -> list[Json]:
    """Return a row for each checkout and kind of call, with the 10th percentile and the median of its groups."""
    rows = []
    for kind, name in dict.fromkeys((run["workload"], run["system"]) for run in runs):
        groups = [run for run in runs if (run["workload"], run["system"]) == (kind, name)]
        row: Json = {"workload": kind, "code": name, "groups": len(groups)}
        for part in parts:
            ms = [group[part] for group in groups]
            row[part] = {"p10": percentile(ms, 0.1), "median": median(ms)}
        rows.append(row)
    return rows


if __name__ == "__main__":
    main()
