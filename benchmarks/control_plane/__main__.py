"""The cost of a policy's decisions: `python -m benchmarks.control_plane [--json F]`.

Medians of the CPU time of one thread, with a given number of waiting requests, for each call that a planner makes: add
a request (`add`), decide (`assign`), describe the front of the queue for the dashboard (`waiting`). Decisions are for
64 workers. `one`: the batch of one worker has ended (vs, glp, abp, magnus, sequence), or one of its rows (ccb, baton,
fusion). `all`: all 64 workers are idle, or every row has decoded another token and tens of rows have ended. scls
assigns all waiting requests in either case.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from statistics import median
from typing import Any, Literal

import click
import numpy as np

from benchmarks.experiment import Experiment
from benchmarks.harness import Json, Results, json_option, print_table
from benchmarks.published_costs import CHATGLM_6B_V100
from cli.option_types import CommaSeparated
from scheduling.policy import Policy, RunningRow, Worker
from scheduling.request import Request
from scheduling.sharing.policy_factory import PolicySettings, make_policy
from tasks.planning.queue_description import describe_queue

MACHINE, LIMIT = CHATGLM_6B_V100, 1024  # the machine and the longest prompt and answer of Magnus's experiments


class BenchmarkFleet:
    """The workers of one policy: with static batches they are busy or idle, with continuous ones they have rows."""

    def __init__(self, policy: Policy, workers: int) -> None:
        self._policy = policy
        self._rows: dict[str, list[RunningRow]] = {f"w{number:03}": [] for number in range(workers)}
        self._idle: set[str] = set()
        self._turns = cycle(self._rows)

    def workers(self) -> list[Worker]:
        """Describe the workers to the policy as a planner does."""
        batches = self._policy.mode == "batch"
        return [
            Worker(name, MACHINE.memory, MACHINE.curves, tuple(rows), queued=int(batches and name not in self._idle))
            for name, rows in self._rows.items()
        ]

    def advance(self, kind: Literal["one", "all"]) -> None:
        """Make one or all workers idle; under continuous batching end one worker's shortest row, or decode all rows."""
        if self._policy.mode != "continuous":
            self._idle = set(self._rows) if kind == "all" else {next(self._turns)}
        elif kind == "one":
            rows = self._rows[next(self._turns)]
            rows.remove(min(rows, key=lambda row: _total(row.request) - row.generated))
        else:
            for name, rows in self._rows.items():
                decoded = [replace(row, generated=row.generated + 1) for row in rows]
                self._rows[name] = [row for row in decoded if row.generated < _total(row.request)]

    def decide(self, now: float) -> tuple[float, int]:
        """Ask the policy for a decision and apply it; returns CPU seconds and the number of assigned requests."""
        workers = self.workers()
        began = time.thread_time()
        assignments = self._policy.assign(workers, now)
        seconds = time.thread_time() - began
        for assignment in assignments:
            rows = self._rows[assignment.worker]
            for row in [row for row in rows if row.request.id in assignment.preempts]:
                rows.remove(row)
                self._policy.add(replace(row.request, generated=row.generated), now)
            if assignment.joins:
                rows += [RunningRow(request, request.generated, now) for request in assignment.requests]
        return seconds, sum(len(assignment.requests) for assignment in assignments)


def _total(request: Request) -> int:
    """Return the tokens that a request generates: half to twice as many as predicted."""
    return min(LIMIT, max(request.generated + 1, request.predicted * (50 + int(request.id) % 150) // 100))


POLICIES = ("vs", "glp", "abp", "magnus", "sequence", "scls", "ccb", "baton", "fusion")
POLICY_LIST = CommaSeparated(click.Choice(POLICIES))
COLUMNS = {
    "policy": "policy",
    "waiting": "waiting",
    "add, ms": "add_ms:.4f",
    "one, ms": "one.decide_ms:.3f",
    "given": "one.given:g",
    "all, ms": "all.decide_ms:.3f",
    "given to all": "all.given:g",
    "show, ms": "show_ms:.2f",
}
WAITING = (1_000, 10_000, 100_000)  # numbers of waiting requests; powers of ten show which costs grow with the queue
# The number of decisions of which the median is taken, by the policy's mode. One is enough for the mode `queue`: it
# assigns all waiting requests, which takes half a second for 100,000.
ROUNDS = {"batch": 50, "queue": 1, "continuous": 50}
SETTINGS = PolicySettings()


@click.command(help=__doc__)
@click.option("--only", type=POLICY_LIST, default=",".join(POLICIES), show_default=True, help="Policies.")
@click.option("--workers", default=64, show_default=True, help="For whom a decision is made.")
@json_option
def main(only: list[str], workers: int, results: Results) -> None:
    """Measure, print and write."""
    waiting = {f"{number:,}": number for number in WAITING}
    experiment = Experiment(waiting, {name: name for name in only}, partial(decisions, workers))
    print_table(experiment.rows(results), COLUMNS)


def decisions(workers: int, name: str, waiting: int) -> Json:
    """Measure CPU times of one policy's calls while `waiting` requests wait."""
    policy = make_policy(name, SETTINGS)
    fleet, source = BenchmarkFleet(policy, workers), requests(seed=1)
    arrived = list(islice(source, waiting))
    now = arrived[-1].arrived_at
    fleet.decide(now)  # the policy gets to know its workers before any request waits
    add_s = [_cpu_s(policy.add, request, request.arrived_at) for request in arrived]
    while policy.mode == "continuous" and fleet.decide(now)[1]:
        pass  # fill the workers until nothing more fits
    row: Json = {"policy": name, "waiting": waiting, "workers": workers}
    kinds: tuple[Literal["one", "all"], ...] = ("one", "all")
    for kind in kinds:
        seconds, given = [], []
        for _ in range(ROUNDS[policy.mode]):
            now += 0.05 if policy.mode != "queue" else 3600.0
            for request in islice(source, max(0, waiting - len(policy))):
                policy.add(replace(request, arrived_at=now), now)
            fleet.advance(kind)
            decide_s, assigned = fleet.decide(now)
            seconds.append(decide_s)
            given.append(assigned)
        row[kind] = {
            "decide_ms": 1e3 * median(seconds),
            "decide_p95_ms": 1e3 * float(np.percentile(seconds, 95)),
            "given": float(np.mean(given)),  # the mean number of requests that a decision assigns
        }
    for request in islice(source, max(0, waiting - len(policy))):
        policy.add(replace(request, arrived_at=now), now)
    show_s = [_cpu_s(lambda: describe_queue(policy.waiting(now), len(policy), fleet.workers())) for _ in range(5)]
    return row | {"add_ms": 1e3 * median(add_s[len(add_s) // 2 :]), "show_ms": 1e3 * median(show_s)}


def requests(seed: int, rate: float = 1_000.0) -> Iterator[Request]:
    """Yield requests with lognormal lengths of prompts and answers: 90 tokens in the median, at most 1,024."""
    rng = np.random.default_rng(seed)
    number, at = 0, 0.0
    while True:
        lengths = np.clip(rng.lognormal(4.5, 1.0, (1000, 2)), 1, LIMIT).astype(np.int64).tolist()
        for (prompt, answer), pause_s in zip(lengths, rng.exponential(1 / rate, 1000).tolist(), strict=True):
            number, at = number + 1, at + pause_s
            yield Request(f"{number:07}", at, prompt, LIMIT, answer, min(LIMIT, 2 * answer))


def _cpu_s(call: Callable[..., Any], *arguments: Any) -> float:
    began = time.thread_time()
    call(*arguments)
    return time.thread_time() - began


if __name__ == "__main__":
    main()
