"""What it costs when two alike workers learn different step costs, and what putting these together gives back.

`python -m benchmarks.learned_apart --json F` simulates two workers of the bundled model at 35 times its size. The costs
that each of them learned are those seen in a live run: one takes cached tokens for dear, the other the step itself.
"""

import random
from itertools import product
from statistics import median

import click

from benchmarks.harness import CommaSeparated, Json, Results, json_option, print_table
from inference.toy.toy_applications import toy_requests
from learning.pooled_curves import pooled_curves
from learning.step_costs import LearnedCurves
from scheduling.costs import ServingCurves
from scheduling.kv_memory import KvMemory
from scheduling.policies.policy_factory import PolicySettings, make_policy
from scheduling.request import Request
from scheduling.simulation.engine_costs import EngineCosts
from scheduling.simulation.simulated_worker import Instance
from scheduling.simulation.simulator import Arrival, simulate

PREFILL, ROW_S = (3e-4, 0.0, 0.0, 0.01), 1e-3
TYPICAL = (16.0, 65.0)  # rows and cached tokens of an iteration: at it both learned the same seconds
LEARNED = {
    "worker-1": ServingCurves(PREFILL, (5.6e-6, ROW_S, 0.0, 9.5e-3)),
    "worker-2": ServingCurves(PREFILL, (1.1e-6, ROW_S, 0.0, 14.2e-3)),
}
TRUE = ServingCurves(PREFILL, (3.35e-6, ROW_S, 0.0, 11.85e-3))
JITTER, ERROR, WINDOWS = 0.1, 0.15, 100
RATE = 60.0  # a second: about twice what the two can serve
TOKENS_A_WORD = 1.3
COLUMNS = ("requests", "kv_tokens", "policy", "costs", "requests_per_s", "mean_s", "p99_s", "idle")


def arrivals(seed: int, requests: int) -> list[Arrival]:
    """Requests of the toy applications with their true lengths as predictions."""
    rng, at, drawn = random.Random(seed), 0.0, []
    for number, toy in enumerate(toy_requests(requests, seed, median_words=12.0)):
        at += rng.expovariate(RATE)
        prompt = int(TOKENS_A_WORD * len(f"{toy.instruction} {toy.input}".split())) + 12
        answer = int(TOKENS_A_WORD * len(toy.output.split())) + 1
        drawn.append(Arrival(Request(str(number), at, prompt, 1024, answer, answer), answer))
    return drawn


def told(costs: str) -> dict[str, ServingCurves]:
    """What the policy is told of each worker: the truth, what each learned alone, or that put together."""
    if costs == "true":
        return dict.fromkeys(LEARNED, TRUE)
    if costs == "apart":
        return LEARNED
    return pooled_curves({name: LearnedCurves(one, ERROR, WINDOWS, 1, TYPICAL) for name, one in LEARNED.items()})


def figures(policy: str, costs: str, requests: int, kv_tokens: int, seed: int) -> dict[str, float]:
    """One simulated run, until all is answered."""
    memory = KvMemory(kv_tokens, 1, paged=True, block_tokens=16)
    fleet = [Instance(name, memory, estimated_costs=curves) for name, curves in told(costs).items()]
    made = make_policy(policy, PolicySettings())
    trace = simulate(made, arrivals(seed, requests), fleet, EngineCosts(TRUE, jitter=JITTER), seed)
    return {
        "requests_per_s": trace.requests_per_s,
        "mean_s": trace.response_s.mean,
        "p99_s": trace.response_s.p99,
        "idle": 1 - sum(trace.busy_s.values()) / len(fleet) / trace.makespan_s,
    }


@click.command(help=__doc__)
@click.option("--requests", type=CommaSeparated(int), default="150,600", show_default=True, help="Requests of a run.")
@click.option("--kv-tokens", type=CommaSeparated(int), default="2400,8000", show_default=True, help="Of each worker.")
@click.option("--seeds", default=8, show_default=True, help="Runs of each kind; the table has their medians.")
@json_option
def main(requests: list[int], kv_tokens: list[int], seeds: int, results: Results) -> None:
    """Simulate fusion and baton with the truth, with costs learned apart, and with those put together."""
    rows: list[Json] = []
    for count, tokens, policy in product(requests, kv_tokens, ("fusion", "baton")):
        for costs in ("true", "apart", "together"):
            runs = [figures(policy, costs, count, tokens, seed) for seed in range(seeds)]
            medians = {name: round(median(run[name] for run in runs), 4) for name in runs[0]}
            rows.append({"requests": count, "kv_tokens": tokens, "policy": policy, "costs": costs, **medians})
    print_table(rows, COLUMNS)
    results.write(rows)


if __name__ == "__main__":
    main()
