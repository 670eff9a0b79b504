"""Runs seeds: `python -m tests.simulation --seeds 1000 --minutes 10`; prints each failing schedule, and shrinks it."""

import argparse
import os
import random
import re
import sys
import time

from tests.simulation import primitives

primitives.install()  # before the product is imported
from tests.simulation.connections import Server  # noqa: E402
from tests.simulation.database import own_server  # noqa: E402
from tests.simulation.scenario import drawn, smaller  # noqa: E402
from tests.simulation.simulation import Outcome, prepare, simulate  # noqa: E402

SHRINK_FOR_S = 60.0


def main() -> int:
    """Returns 1 if a seed failed."""
    asked = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    asked.add_argument("--seeds", type=int, default=50, help="how many seeds")
    asked.add_argument("--first", type=int, default=0, help="the first seed")
    asked.add_argument("--minutes", type=float, default=10.0, help="begin no further seed after this long")
    asked.add_argument("--most-failures", type=int, default=1, help="end after this many failing seeds")
    asked.add_argument("--no-shrinking", action="store_true")
    asked.add_argument("--twice", action="store_true", help="run each seed twice, and compare the schedules")
    given = asked.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets of texts is part of a schedule
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.simulation", *sys.argv[1:]],
            os.environ | {"PYTHONHASHSEED": "0"},
        )
    if sys.platform == "linux":  # the simulation and its server take turns: on one CPU they wake each other sooner
        os.sched_setaffinity(0, {random.choice(sorted(os.sched_getaffinity(0)))})
    with own_server() as url:
        return run(given, url)


def run(given: argparse.Namespace, url: str) -> int:
    """Runs the seeds, and prints what came of them."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    server = prepare(url)
    until, seeds, failed = time.monotonic() + 60 * given.minutes, 0, 0
    simulated_s = cpu_s = statements = 0.0
    for seed in range(given.first, given.first + given.seeds):
        if time.monotonic() > until or failed >= given.most_failures:
            break
        outcome = simulate(drawn(seed), server, url)
        seeds, statements = seeds + 1, statements + outcome.statements
        simulated_s, cpu_s = simulated_s + outcome.simulated_s, cpu_s + outcome.cpu_s
        if given.twice and simulate(drawn(seed), server, url).fingerprint != outcome.fingerprint:
            print(f"seed {seed} took another course the second time")
            failed += 1
        if outcome.failures:
            failed += 1
            report(outcome if given.no_shrinking else shrunk(outcome, server, url))
    hours, cpu_minutes = simulated_s / 3600, cpu_s / 60
    print(
        f"{seeds} seeds, {failed} failed; {hours:.2f} simulated hours, {hours / cpu_minutes:.2f} a CPU minute, "
        f"{statements:.0f} statements, {statements / cpu_s:.0f} a CPU second"
    )
    return 1 if failed else 0


def shrunk(outcome: Outcome, server: Server, url: str) -> Outcome:
    """Returns the outcome of the smallest scenario that was found to fail in the same way."""
    until, found = time.monotonic() + SHRINK_FOR_S, True
    while found and time.monotonic() < until:
        found = False
        for scenario in smaller(outcome.scenario):
            candidate = simulate(scenario, server, url)
            if candidate.failures and kind(candidate) == kind(outcome):
                outcome, found = candidate, True
                break
    return outcome


def kind(outcome: Outcome) -> str:
    """Returns what the first failure is, without ids, numbers and details."""
    return re.sub(r"\S*\d\S*", "", outcome.failures[0].partition(":")[0])


def report(outcome: Outcome) -> None:
    """Prints a failing schedule in plain words."""
    print(*outcome.told, sep="\n")
    print(f"seed {outcome.scenario.seed} fails: {outcome.scenario}")
    print(*(f"  {failure}" for failure in outcome.failures), sep="\n")


if __name__ == "__main__":
    sys.exit(main())
