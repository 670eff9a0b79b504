"""What a prefix cache brings under each policy, simulated: `python -m benchmarks.shared_instructions --data DIR`.

The papers' tasks on V100s, where all prompts of an application begin with an instruction of `--instruction` tokens, at
multiples of what `fusion` serves without a cache. With it, an engine computes the instruction once for as long as it
has memory for it beside its rows, which hold it once. `uncounted`: policies count the instruction for each row. Rows
join and leave in blocks of memory. DIR has requests/*.jsonl.
"""

from dataclasses import replace
from itertools import product
from pathlib import Path

import click

from benchmarks.fusion_variants import Patch, replaced
from benchmarks.harness import Json, Results, json_option, print_table, say
from benchmarks.inputs.simulated_workloads import Limits, WorkloadLengths, arrivals, read_requests
from benchmarks.published_costs import CHATGLM_6B_V100 as MACHINE
from cli.option_types import CommaSeparated
from scheduling.kv_memory import KvMemory
from scheduling.policies.policy_factory import PolicySettings, make_policy
from scheduling.simulation.engine_costs import EngineCosts
from scheduling.simulation.simulated_worker import Instance
from scheduling.simulation.simulator import simulate

POLICIES = ("ccb", "baton", "fusion")  # whose rows join and leave
RATE, SECONDS = 12.0, 60.0  # arrivals a second for each worker, more than any serves, and for how long
ANSWER = 1024  # most tokens
CACHES = ("off", "uncounted", "on")
UNCOUNTED: list[Patch] = [(KvMemory, "sharing", lambda memory, tokens: memory)]
COLUMNS = {
    "load": "load:.1f",
    "policy": "policy",
    "prefix cache": "cache",
    "requests/s": "requests_per_s:.2f",
    "mean s": "mean_s:.2f",
    "P99 s": "p99_s:.1f",
    "rows": "rows:.1f",
}


@click.command(help=__doc__)
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--instruction", default=512, show_default=True, help="Tokens.")
@click.option("--loads", type=CommaSeparated(float), default="0.7,1.0,1.3", show_default=True)
@click.option("--workers", default=2, show_default=True)
@click.option("--seed", default=1, show_default=True)
@json_option
def main(data: Path, instruction: int, loads: list[float], workers: int, seed: int, results: Results) -> None:
    """Simulate every policy at every load, without the cache, with it uncounted, and with it."""
    lengths = read_requests(data, "forest")["mixed"]
    lengths = replace(lengths, prompt=lengths.prompt + instruction)
    shared = dict.fromkeys(lengths.application, instruction)
    saturation = float(simulated("fusion", lengths, {}, RATE * workers, workers, seed)["requests_per_s"])
    rows: list[Json] = []
    for load, policy, cache in product(loads, POLICIES, CACHES):
        say(f"{policy}, {load} of {saturation:.1f} requests/s, cache {cache}")
        with replaced(UNCOUNTED if cache == "uncounted" else []):
            found = simulated(policy, lengths, {} if cache == "off" else shared, load * saturation, workers, seed)
        rows.append({"load": load, "policy": policy, "cache": cache, **found})
        results.write(rows)
    print_table(rows, COLUMNS, f"{workers} workers, instructions of {instruction} tokens")


def simulated(
    policy: str, lengths: WorkloadLengths, shared: dict[str, int], rate: float, workers: int, seed: int
) -> Json:
    """Simulate one policy; `shared` has the tokens of each application's instruction if they are cached."""
    limits = Limits(int(lengths.prompt.max()), ANSWER)
    made = arrivals(lengths, "real", rate, SECONDS, seed, limits)
    fleet = [Instance(f"w{number}", replace(MACHINE.memory, paged=True)) for number in range(workers)]
    costs = EngineCosts(MACHINE.curves, shared_tokens=shared)
    trace = simulate(make_policy(policy, PolicySettings(limits.prompt, limits.answer)), made, fleet, costs, seed=seed)
    response_s = trace.response_s
    return {
        "requests_per_s": trace.requests_per_s,
        "mean_s": response_s.mean,
        "p99_s": response_s.p99,
        "rows": trace.batch_size_mean,
    }


if __name__ == "__main__":
    main()
