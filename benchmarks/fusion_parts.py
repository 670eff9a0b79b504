"""What each part of `fusion` brings, simulated: `python -m benchmarks.fusion_parts --data DIR [--json F]`.

Each row is `fusion` with one part replaced by something simpler, or `baton`, on V100s. A load is a multiple of
what `fusion` serves of more requests than it can. `useless` predictions have no rank information, and the policy is
told so. DIR has requests/*.jsonl.
"""

from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import click
import numpy as np

from benchmarks.fusion_variants import FUSION_VARIANTS, replaced
from benchmarks.harness import Json, Results, json_option, print_table, say
from benchmarks.inputs.simulated_workloads import Limits, WorkloadLengths, arrivals, read_requests
from benchmarks.published_costs import CHATGLM_6B_V100 as MACHINE
from cli.option_types import CommaSeparated
from scheduling.costs import Floats
from scheduling.policies.policy_factory import PolicySettings, make_policy
from scheduling.simulation.engine_costs import EngineCosts
from scheduling.simulation.simulated_worker import Instance
from scheduling.simulation.simulator import simulate

MEMORIES = ("rectangular", "paged")
LIMITS = Limits(1024, 1024)
RATES_OF = 7  # workers
RATES = {"mixed": {"rectangular": 48.0, "paged": 80.0}, "hard": {"rectangular": 12.0, "paged": 20.0}}
SECONDS = {"mixed": 60.0, "hard": 120.0}
TAUS = {"real": 0.6, "useless": 0.0}  # the rank correlation that the policy is told; the first one is rounded
COLUMNS = (
    "workload",
    "memory",
    "predictor",
    "load",
    "policy",
    "requests_per_s",
    "over_fusion",
    "mean_s",
    "mean_over_fusion",
)


@click.command(help=__doc__)
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--seeds", type=CommaSeparated(int), default="1,2,3", show_default=True)
@click.option("--loads", type=CommaSeparated(float), default="0.7,1.0,1.3", show_default=True, help="Of saturation.")
@click.option("--memories", type=CommaSeparated(click.Choice(MEMORIES)), default=",".join(MEMORIES), show_default=True)
@click.option("--workloads", type=CommaSeparated(click.Choice([*RATES])), default=",".join(RATES), show_default=True)
@click.option("--workers", default=RATES_OF, show_default=True)
@json_option
def main(
    data: Path,
    seeds: list[int],
    loads: list[float],
    memories: list[str],
    workloads: list[str],
    workers: int,
    results: Results,
) -> None:
    """Simulate every variant in every ablation, print, and write after each ablation."""
    lengths = read_requests(data, "forest")
    rows: list[Json] = []
    for workload, memory in product(workloads, memories):
        rate = RATES[workload][memory] * workers / RATES_OF
        overload = Ablation(lengths[workload], workload, memory, "real", rate, workers)
        saturation = simulated(overload, "fusion", seed=1)[0]
        for predictor, load in product(TAUS, loads):
            say(f"{workload}, {memory}, {predictor}, {load} of {saturation:.1f} requests/s")
            ablation = replace(overload, predictor=predictor, rate=load * saturation)
            told = {"workload": workload, "memory": memory, "predictor": predictor, "load": load}
            rows += [told | row for row in compared(ablation, seeds)]
            results.write(rows)
    print_table(rows, COLUMNS, f"Medians of {len(seeds)} seeds, {workers} workers")


@dataclass(frozen=True)
class Ablation:
    """What all variants are simulated with."""

    lengths: WorkloadLengths
    workload: str
    memory: str
    predictor: str
    rate: float
    workers: int


def compared(ablation: Ablation, seeds: list[int]) -> list[Json]:
    """Return a row for `baton` and for each variant, with medians over the seeds of the ratios to `fusion`."""
    names = "baton", "fusion", *FUSION_VARIANTS
    figures = {name: np.array([simulated(ablation, name, seed) for seed in seeds]) for name in names}
    return [{"policy": name} | _medians(runs, runs / figures["fusion"]) for name, runs in figures.items()]


def simulated(ablation: Ablation, name: str, seed: int) -> tuple[float, float]:
    """Return the throughput, while requests arrive and after, and the mean response time."""
    made = arrivals(ablation.lengths, ablation.predictor, ablation.rate, SECONDS[ablation.workload], seed, LIMITS)
    kv_memory = replace(MACHINE.memory, paged=ablation.memory == "paged")
    fleet = [Instance(f"w{number}", kv_memory) for number in range(ablation.workers)]
    policy = make_policy("baton" if name == "baton" else "fusion", PolicySettings(LIMITS.prompt, LIMITS.answer))
    with replaced(FUSION_VARIANTS.get(name, [])):
        policy.set_rank_correlation(TAUS[ablation.predictor])
        trace = simulate(policy, made, fleet, EngineCosts(MACHINE.curves), seed=1)
    return trace.requests_per_s, trace.response_s.mean


def _medians(runs: Floats, ratios: Floats) -> Json:
    served, mean_s = np.median(runs, axis=0).tolist()
    over, mean_over = np.median(ratios, axis=0).tolist()
    return {
        "requests_per_s": round(served, 2),
        "over_fusion": round(over, 3),
        "mean_s": round(mean_s, 1),
        "mean_over_fusion": round(mean_over, 2),
    }


if __name__ == "__main__":
    main()
