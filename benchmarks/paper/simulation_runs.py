"""One simulation of `benchmarks.paper`, as a value that another process can run, and the table row of its figures."""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from benchmarks.inputs.simulated_workloads import Limits, WorkloadLengths, arrivals
from benchmarks.published_costs import Machine
from scheduling.policy import Policy
from scheduling.simulation.engine_costs import EngineCosts
from scheduling.simulation.simulated_worker import Instance
from scheduling.simulation.simulator import Arrival, simulate
from scheduling.simulation.trace import Trace

Row = dict[str, Any]
Workloads = Mapping[str, WorkloadLengths]
LIMITS = Limits()
_workloads: dict[str, WorkloadLengths] = {}  # the workloads of this process of the pool


@dataclass(frozen=True)
class SimulationRun:
    """A policy, its arrivals and its machines; `notes` are further columns of its row."""

    experiment: str
    policy: str  # the policy's name in the row
    make: Callable[[], Policy]
    arrivals: Callable[[Workloads], list[Arrival]]
    machine: Machine
    workers: int
    rate: float | None = None
    workload: str = ""
    predictor: str = ""
    engine: Mapping[str, Any] = field(default_factory=dict)  # fields of EngineCosts beside the curves
    notes: Mapping[str, Any] = field(default_factory=dict)
    figures: Callable[[Trace, list[Arrival]], Row] | None = None  # makes further columns from the trace


def workload_arrivals(
    workload: str, predictor: str, rate: float, seconds: float, limits: Limits = LIMITS, growth: float = 1.0
) -> Callable[[Workloads], list[Arrival]]:
    """Return the `arrivals` of a `SimulationRun` that draws requests from this workload at this rate."""
    return partial(_draw, workload, predictor, rate, seconds, limits, growth)


def _draw(
    workload: str, predictor: str, rate: float, seconds: float, limits: Limits, growth: float, workloads: Workloads
) -> list[Arrival]:
    return arrivals(workloads[workload], predictor, rate, seconds, 1, limits, growth)


def execute(run: SimulationRun, workloads: Workloads) -> Row:
    """Run the simulation; returns a row with the figures that the papers report."""
    fleet = [Instance(f"w{number}", run.machine.memory) for number in range(run.workers)]
    costs = EngineCosts(run.machine.curves, **run.engine)
    arriving = run.arrivals(workloads)
    trace = simulate(run.make(), arriving, fleet, costs, seed=1)
    if len(trace.answers) != len(arriving):
        raise AssertionError(f"{run.policy}: {len(trace.answers)} of {len(arriving)} answered")
    response = trace.response_s
    return {
        "experiment": run.experiment,
        "policy": run.policy,
        "rate": run.rate,
        "workload": run.workload,
        "predictor": run.predictor,
        "requests_per_s": trace.requests_per_s,
        "valid_tokens_per_s": trace.valid_tokens_per_s,
        "total_tokens_per_s": trace.total_tokens_per_s,
        "response_s": {name: getattr(response, name) for name in ("mean", "p50", "p95", "p99", "max")},
        "batch_size_mean": trace.batch_size_mean,
        "pad_tokens": trace.tokens.pad,
        "invalid_tokens": trace.tokens.invalid,
        "wasted_share": trace.wasted_share,
        "paper": {},
        "requests": len(arriving),
        "workers": run.workers,
        "seconds": trace.makespan_s,
        "load_imbalance_s": trace.load_imbalance_s,
        "out_of_memory": trace.out_of_memory,
        "preempted": trace.preempted,
        "rescheduled_share": float(np.mean([answer.schedules > 1 for answer in trace.answers.values()])),
        "idle_share": 1 - float(np.mean(list(trace.busy_s.values()))) / trace.makespan_s,
        "batch_length_mean": float(np.mean([batch.iterations for batch in trace.batches] or [0])),
        "tokens_a_batch_of_a_request": _iterations_of_a_request(trace),
        **run.notes,
        **(run.figures(trace, arriving) if run.figures else {}),
    }


def _iterations_of_a_request(trace: Trace) -> float:
    """Return the mean iterations of a request's batch: a batch counts once for each of its requests."""
    sizes = [len(batch.ids) for batch in trace.batches]
    return float(np.average([batch.iterations for batch in trace.batches], weights=sizes)) if sizes else 0.0


def use_workloads(workloads: Workloads) -> None:
    """Set the workloads of a pool's process, at low priority; it is here because pools cannot import a `__main__`."""
    os.nice(10)
    _workloads.update(workloads)


def execute_in_pool(run: SimulationRun) -> Row:
    """Run the simulation in a process of the pool, with the workloads of `use_workloads`."""
    return execute(run, _workloads)


def note(row: Row, what: str, ours: float, low: float | None, high: float | None) -> None:
    """Add a figure to a row's comparisons with the paper; `low` and `high` are the paper's range."""
    row["paper"][what] = {"ours": ours, "paper": [low, high]}


Column = Callable[[Row], float]


def column(*path: str) -> Column:
    """Return a function that reads the value at this path of keys from a row."""

    def read(row: Row) -> float:
        value: Any = row
        for key in path:
            value = value[key]
        return float(value)

    return read


def compare(
    rows: Iterable[Row], policy: str, base: str, name: str, column: Column, low: float, high: float, falls: bool = False
) -> None:
    """Add to each row of `policy` its change over the `base` row of the same setting, with the paper's range.

    As in the papers, the change of a throughput is its increase, and the change of a time (`falls`) is its decrease.
    """
    rows = list(rows)
    bases = {_setting(row): row for row in rows if row["policy"] == base}
    for row in rows:
        other = bases.get(_setting(row))
        if row["policy"] == policy and other and column(other):
            change = column(row) / column(other) - 1
            note(row, f"{name} over {base}", -change if falls else change, low, high)


def _setting(row: Row) -> tuple[Any, ...]:
    return tuple(row[key] for key in ("experiment", "rate", "workload", "predictor", "workers"))
