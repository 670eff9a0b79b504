"""Runs seeds: `python -m tests.simulation --seeds 1000 --minutes 10`; prints each failing schedule, and shrinks it."""

import argparse
import os
import random
import sys
import time
from collections.abc import Iterator

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
    # The simulation and its server take turns: on one CPU, neither waits for another one to wake up.
    os.sched_setaffinity(0, {random.choice(sorted(os.sched_getaffinity(0)))})
    with own_server() as url:
        return run(given, url)


def run(given: argparse.Namespace, url: str) -> int:
    """Runs the seeds, and prints what came of them."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    server = prepare(url)
    until, failed = time.monotonic() + 60 * given.minutes, 0
    outcomes = []
    for outcome in simulated(range(given.first, given.first + given.seeds), server, url, until):
        outcomes.append(outcome)
        if given.twice:
            again = simulate(outcome.scenario, server, url)
            if again.fingerprint != outcome.fingerprint:
                print(f"seed {outcome.scenario.seed} took another course the second time")
                failed += 1
        if outcome.failures:
            failed += 1
            report(outcome if given.no_shrinking else shrunk(outcome, server, url))
        if failed >= given.most_failures:
            break
    cpu_s = sum(one.cpu_s for one in outcomes) or 1.0
    hours, statements = sum(one.simulated_s for one in outcomes) / 3600, sum(one.statements for one in outcomes)
    print(
        f"{len(outcomes)} seeds, {failed} failed; {hours:.2f} simulated hours, {hours * 60 / cpu_s:.2f} a CPU minute, "
        f"{statements} statements, {statements / cpu_s:.0f} a CPU second"
    )
    return 1 if failed else 0


def simulated(seeds: range, server: Server, url: str, until: float) -> Iterator[Outcome]:
    """Yields the outcomes of seeds, until the time is over."""
    for seed in seeds:
        if time.monotonic() > until:
            return
        yield simulate(drawn(seed), server, url)


def shrunk(outcome: Outcome, server: Server, url: str) -> Outcome:
    """Returns the outcome of the smallest scenario that was found to fail, too."""
    until, found = time.monotonic() + SHRINK_FOR_S, True
    while found and time.monotonic() < until:
        found = False
        for scenario in smaller(outcome.scenario):
            candidate = simulate(scenario, server, url)
            if candidate.failures:
                outcome, found = candidate, True
                break
    return outcome


def report(outcome: Outcome) -> None:
    """Prints a failing schedule in plain words."""
    print(*outcome.told, sep="\n")
    print(f"seed {outcome.scenario.seed} fails: {outcome.scenario}")
    print(*(f"  {failure}" for failure in outcome.failures), sep="\n")


if __name__ == "__main__":
    sys.exit(main())
