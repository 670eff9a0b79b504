"""The cost of a policy's decisions: `python -m benchmarks.control_plane [--json F] [--simulate all]`.

Medians of the CPU time of one thread, with a given number of waiting requests, for each call that a planner makes: add
a request (`add`), decide (`assign`), describe the front of the queue for the dashboard (`waiting`). Decisions are for
64 workers. `one`: the batch of one worker has ended (vs, glp, abp, magnus, sequence), or one of its rows (ccb, baton,
fusion). `all`: all 64 workers are idle, or every row has decoded another token and tens of rows have ended. scls
assigns all waiting requests in either case. `--simulate` adds whole simulations of many requests on many workers, with
a planner that is called once a second.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import cycle, islice
from statistics import median
from typing import Any, Literal

import click
import numpy as np

from benchmarks.harness import Json, Results, json_option, print_table
from benchmarks.published_costs import CHATGLM_6B_V100
from cli.option_types import CommaSeparated
from scheduling.policies.policy_factory import PolicySettings, make_policy
from scheduling.policy import Policy, RunningRow, Worker
from scheduling.request import Request
from scheduling.simulation.engine_costs import EngineCosts
from scheduling.simulation.simulated_worker import Instance
from scheduling.simulation.simulator import Arrival, simulate
from tasks.planning.queue_description import describe_queue

MACHINE, LIMIT = CHATGLM_6B_V100, 1024  # the machine and the longest prompt and answer of Magnus's experiments


class BenchmarkFleet:
    """The workers of one policy: busy or idle with static batches, with running rows under continuous batching."""

    def __init__(self, policy: Policy, workers: int) -> None:
        self._policy = policy
        self._rows: dict[str, list[RunningRow]] = {f"w{number:03}": [] for number in range(workers)}
        self._idle: set[str] = set()
        self._turns = cycle(self._rows)

    def workers(self) -> list[Worker]:
        """Describe the workers as a planner does to a policy."""
        batches = self._policy.mode == "batch"
        return [
            Worker(name, MACHINE.memory, MACHINE.curves, tuple(rows), queued=int(batches and name not in self._idle))
            for name, rows in self._rows.items()
        ]

    def advance(self, kind: Literal["one", "all"]) -> None:
        """Make one worker or all idle, or end the shortest row of one or decode a token in all rows."""
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
    """The tokens that a request generates: half to twice as many as predicted."""
    return min(LIMIT, max(request.generated + 1, request.predicted * (50 + int(request.id) % 150) // 100))


POLICIES = ("vs", "glp", "abp", "magnus", "sequence", "scls", "ccb", "baton", "fusion")
POLICY_LIST = CommaSeparated(click.Choice(POLICIES))
SIMULATED = CommaSeparated(click.Choice([*POLICIES, "all"]))
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
WAITING = (1_000, 10_000, 100_000)  # powers of ten, to show what grows with the queue
# Decisions measured for a median, by the policy's mode: a policy of mode `queue` assigns all waiting requests, which
# takes half a second for 100,000.
ROUNDS = {"batch": 50, "queue": 1, "continuous": 50}
SETTINGS = PolicySettings()
RATE_PER_WORKER = 1.0  # requests a second in a simulation: more than any policy but fusion serves
TICK_S = 1.0  # between two calls of the simulated planner; a shorter time costs more decisions, not tuned


@click.command(help=__doc__)
@click.option("--only", type=POLICY_LIST, default=",".join(POLICIES), show_default=True, help="Policies.")
@click.option("--workers", default=64, show_default=True, help="For whom a decision is made.")
@click.option("--simulate", "simulated", type=SIMULATED, default="", help="Simulate these policies too, or `all`.")
@click.option("--simulated-requests", default=1_000_000, show_default=True)
@click.option("--simulated-workers", default=1_000, show_default=True)
@json_option
def main(
    only: list[str],
    workers: int,
    simulated: list[str],
    simulated_requests: int,
    simulated_workers: int,
    results: Results,
) -> None:
    """Measure, print and write."""
    rows = [decisions(name, waiting, workers) for name in only for waiting in WAITING]
    print_table(rows, COLUMNS)
    names = POLICIES if "all" in simulated else simulated
    runs = [simulation(name, simulated_requests, simulated_workers) for name in names]
    if runs:
        columns = ("policy", "requests", "workers", "cpu_s", "virtual_s", "requests_per_s", "decisions", "decide_ms")
        print_table(runs, columns)
    results.write({"decisions": rows, "simulations": runs})


def decisions(name: str, waiting: int, workers: int) -> Json:
    """Measure CPU times of one policy's calls while `waiting` requests wait."""
    policy = make_policy(name, SETTINGS)
    fleet, source = BenchmarkFleet(policy, workers), requests(seed=1)
    arrived = list(islice(source, waiting))
    now = arrived[-1].arrived_at
    fleet.decide(now)  # shows the policy its workers before any request waits
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
            "given": float(np.mean(given)),  # requests assigned in a decision
        }
    for request in islice(source, max(0, waiting - len(policy))):
        policy.add(replace(request, arrived_at=now), now)
    show_s = [_cpu_s(lambda: describe_queue(policy.waiting(now), len(policy), fleet.workers())) for _ in range(5)]
    return row | {"add_ms": 1e3 * median(add_s[len(add_s) // 2 :]), "show_ms": 1e3 * median(show_s)}


def requests(seed: int, rate: float = 1_000.0) -> Iterator[Request]:
    """Yield requests with lognormal prompts and answers, 90 tokens in the median and at most 1,024."""
    rng = np.random.default_rng(seed)
    number, at = 0, 0.0
    while True:
        lengths = np.clip(rng.lognormal(4.5, 1.0, (1000, 2)), 1, LIMIT).astype(np.int64).tolist()
        for (prompt, answer), pause_s in zip(lengths, rng.exponential(1 / rate, 1000).tolist(), strict=True):
            number, at = number + 1, at + pause_s
            yield Request(f"{number:07}", at, prompt, LIMIT, answer, min(LIMIT, 2 * answer))


def simulation(name: str, count: int, workers: int) -> Json:
    """Simulate until the last answer; returns CPU seconds in all and of the policy's decisions."""
    errors = np.random.default_rng(3).lognormal(0.0, 0.3, count).tolist()
    arriving = islice(requests(seed=3, rate=RATE_PER_WORKER * workers), count)
    arrivals = [
        Arrival(request, min(LIMIT, max(1, round(request.predicted * error))))
        for request, error in zip(arriving, errors, strict=True)
    ]
    policy = make_policy(name, SETTINGS)
    decide_s: list[float] = []
    policy.assign = _timed(policy.assign, decide_s)  # type: ignore[method-assign]
    fleet = [Instance(f"w{number:04}", MACHINE.memory) for number in range(workers)]
    began = time.thread_time()
    trace = simulate(policy, arrivals, fleet, EngineCosts(MACHINE.curves), seed=1, tick_s=TICK_S)
    cpu_s = time.thread_time() - began
    if len(trace.answers) != count:
        raise AssertionError(f"{name}: {len(trace.answers)} of {count} answered")
    return {
        "policy": name,
        "requests": count,
        "workers": workers,
        "cpu_s": cpu_s,
        "virtual_s": trace.makespan_s,
        "requests_per_s": trace.requests_per_s,
        "decisions": len(decide_s),
        "decide_ms": 1e3 * sum(decide_s) / len(decide_s),
    }


def _timed(call: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
    def timed(*arguments: Any) -> Any:
        began = time.thread_time()
        value = call(*arguments)
        seconds.append(time.thread_time() - began)
        return value

    return timed


def _cpu_s(call: Callable[..., Any], *arguments: Any) -> float:
    began = time.thread_time()
    call(*arguments)
    return time.thread_time() - began


if __name__ == "__main__":
    main()
