"""What each part of `fusion` brings, simulated: `python -m benchmarks.fusion_parts --data DIR [--json F]`.

Each row is `fusion` with one part replaced by something simpler, or `baton`, on seven V100s that get more requests than
they serve. `useless` predictions have no rank information, and the policy is told so. DIR has requests/*.jsonl.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
import numpy as np

from benchmarks.harness import Json, Results, json_option, print_table, say
from benchmarks.inputs.simulated_workloads import Limits, WorkloadLengths, arrivals, read_requests
from cli.option_types import CommaSeparated
from scheduling.costs import Floats, Ints
from scheduling.policies.fusion import fleet_arrays, fusion_policy, matching
from scheduling.policies.fusion.delay_cost import UPPER_EDGES, DelayedRequests, delay_s, seconds_per_feature
from scheduling.policies.fusion.fleet_arrays import FleetArrays, reserved
from scheduling.policies.fusion.join_buffer import JoinBuffer
from scheduling.policies.fusion.length_buckets import WaitingRequest
from scheduling.policies.policy_factory import PolicySettings, make_policy
from scheduling.simulation.engine_costs import EngineCosts
from scheduling.simulation.published_costs import CHATGLM_6B_V100 as MACHINE
from scheduling.simulation.simulated_worker import Instance
from scheduling.simulation.simulator import simulate

WORKERS, LIMITS = 7, Limits(1024, 1024)
RATES = {"mixed": {"rectangular": 48.0, "paged": 80.0}, "hard": {"rectangular": 12.0, "paged": 20.0}}
SECONDS = {"mixed": 60.0, "hard": 120.0}
TAUS = {"real": 0.6, "useless": 0.0}  # the rank correlation that the policy is told; the first one is rounded
COLUMNS = ("workload", "memory", "predictor", "policy", "requests_per_s", "over_fusion", "mean_s", "mean_over_fusion")
Patch = tuple[Any, str, object]  # a module or class, a name in it, and what replaces it


def at_once(buffer: JoinBuffer, _: Mapping[str, float], now: float) -> dict[str, list[WaitingRequest]]:
    """Let every joiner join at once."""
    released = {worker: list(group.joiners.values()) for worker, group in buffer.groups.items()}
    buffer.groups.clear()
    buffer.wake_at = None
    return released


def one_band(fleet: FleetArrays, waiting_s: Floats) -> Floats:
    """Give every worker a band of all lengths that wait."""
    return np.full(len(fleet), UPPER_EDGES[np.flatnonzero(waiting_s).max(initial=0)])


def by_arrival(
    fleet: FleetArrays, delayed: DelayedRequests, workers: Ints, prefill: Floats, remaining: Floats
) -> Floats:
    """Compare the workers for each request by the delay, but not the requests with each other."""
    delays = delay_s(fleet, delayed, workers, prefill, remaining)
    return np.asarray(delays / delays.min(axis=0), np.float64)


def by_rows(fleet: FleetArrays, _: DelayedRequests, workers: Ints, prefill: Floats, remaining: Floats) -> Floats:
    """Order the requests by their own work, and take the worker with the fewest rows."""
    work = np.stack([np.ones_like(prefill), prefill, remaining, remaining * (prefill + remaining / 2)])
    return np.asarray((1 + fleet.size[workers, None] / 1000) * (seconds_per_feature(fleet) @ work), np.float64)


def spread(times: float) -> list[Patch]:
    """Reserve this many times what `fusion` reserves above the median."""

    def shared(median: Floats, upper: Floats, size: Ints) -> Floats:
        return np.asarray(median + times * (reserved(median, upper, size) - median), np.float64)

    return [(module, "reserved", shared) for module in (fleet_arrays, matching)]


def whole_quantile(median: Floats, upper: Floats, size: Ints) -> Floats:
    """Reserve the upper quantile of every row."""
    return upper


VARIANTS: dict[str, list[Patch]] = {
    "fusion": [],
    "no limit on rows": [(FleetArrays, "limit_rows", lambda fleet: None)],
    "joins at once": [(JoinBuffer, "release", at_once)],
    "one band of lengths": [(fusion_policy, "upper_edges", one_band)],
    "order of arrival": [(fusion_policy, "delay_s", by_arrival)],
    "worker with the fewest rows": [(fusion_policy, "delay_s", by_rows)],
    "reserves the median": spread(0.0),
    "reserves half of the spread": spread(2.0),
    "reserves the whole spread": spread(4.0),
    "reserves the whole quantile": [(module, "reserved", whole_quantile) for module in (fleet_arrays, matching)],
}


@click.command(help=__doc__)
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--seeds", type=CommaSeparated(int), default="1,2,3", show_default=True)
@json_option
def main(data: Path, seeds: list[int], results: Results) -> None:
    """Simulate every variant in every setting, print, and write after each setting."""
    lengths = read_requests(data, "forest")
    rows: list[Json] = []
    for workload, memory, predictor in product(RATES, ("rectangular", "paged"), TAUS):
        say(f"{workload}, {memory}, {predictor}")
        rows += compared(lengths[workload], workload, memory, predictor, seeds)
        results.write(rows)
    print_table(rows, COLUMNS, f"Medians of {len(seeds)} seeds, {WORKERS} workers in overload")


def compared(lengths: WorkloadLengths, workload: str, memory: str, predictor: str, seeds: list[int]) -> list[Json]:
    """Return a row for `baton` and for each variant, with medians over the seeds of the ratios to `fusion`."""
    figures: dict[str, list[tuple[float, float]]] = {name: [] for name in ("baton", *VARIANTS)}
    kv_memory = replace(MACHINE.memory, paged=memory == "paged")
    fleet = [Instance(f"w{number}", kv_memory) for number in range(WORKERS)]
    for seed in seeds:
        made = arrivals(lengths, predictor, RATES[workload][memory], SECONDS[workload], seed, LIMITS)
        for name, runs in figures.items():
            policy = make_policy("baton" if name == "baton" else "fusion", PolicySettings(LIMITS.prompt, LIMITS.answer))
            policy.set_rank_correlation(TAUS[predictor])
            with replaced(VARIANTS.get(name, [])):
                trace = simulate(policy, made, fleet, EngineCosts(MACHINE.curves), seed=1)
            runs.append((trace.requests_per_s, trace.response_s.mean))
    whole = np.array(figures["fusion"])
    return [
        {"workload": workload, "memory": memory, "predictor": predictor, "policy": name}
        | _medians(np.array(runs), np.array(runs) / whole)
        for name, runs in figures.items()
    ]


def _medians(runs: Floats, ratios: Floats) -> Json:
    served, mean_s = np.median(runs, axis=0).tolist()
    over, mean_over = np.median(ratios, axis=0).tolist()
    return {
        "requests_per_s": round(served, 2),
        "over_fusion": round(over, 3),
        "mean_s": round(mean_s, 1),
        "mean_over_fusion": round(mean_over, 2),
    }


@contextmanager
def replaced(patches: list[Patch]) -> Iterator[None]:
    """Replace these names while the context runs."""
    with ExitStack() as stack:
        for where, name, other in patches:
            stack.enter_context(patch.object(where, name, other))
        yield


if __name__ == "__main__":
    main()
