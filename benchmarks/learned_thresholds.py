"""Simulates the gain of `magnus` and `scls` if Φ and the slice length are chosen from lengths and costs.

`python -m benchmarks.learned_thresholds --answers F --json F2`

Each row is a policy with one Φ or S on one worker, in overload, compared with `vs`. The workloads are the toy
applications' lengths at 1, 8 and 35 times the toy model's costs and, with `--answers` (a file that
`benchmarks.real_lengths` keeps), a real model's lengths and costs on two threads, in scarce and in ample memory.
Predictions are the true lengths with noise of a chosen Kendall's tau.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Json, Results, json_option, print_table
from benchmarks.inputs.simulated_workloads import noisy, upper_of
from inference.toy.toy_applications import APPLICATIONS, MAX_WORDS, draw_request
from scheduling.costs import ServingCurves
from scheduling.kv_memory import KvMemory
from scheduling.policies.chosen_parameters import PUBLISHED_THRESHOLD
from scheduling.policies.magnus import FixedSize, MagnusPolicy
from scheduling.policies.scls import SliceLevel
from scheduling.policies.vanilla import Vanilla
from scheduling.policy import Policy
from scheduling.request import Request
from scheduling.simulation.engine_costs import EngineCosts
from scheduling.simulation.simulated_worker import Instance
from scheduling.simulation.simulator import Arrival, simulate

# Measured on two cores: the bundled model's steps, and those of SmolLM2-135M-Instruct in bfloat16, which take 49, 52,
# 55, 75 and 104 ms at 1, 4, 7, 16 and 32 rows; its prefill about 1 ms a token (docs/results/real_model.md).
TOY_COSTS = ServingCurves((1e-5, 0.0, 0.0, 1e-3), (2e-8, 7e-5, 0.0, 1.2e-3))
REAL_COSTS = ServingCurves((1e-3, 0.0, 0.0, 0.02), (2e-6, 1.6e-3, 0.0, 0.0475))
MOST_PROMPT, TOY_LIMIT, REAL_LIMIT = 128, 512, 256
# median of the inputs' words and standard deviation of their logarithm, as in the live benchmark
TOY_WORDS, TOY_WORD_SPREAD = 30.0, 0.6
TOKENS_A_WORD = 1.3  # roughly, with the toy's byte pairs; a constant factor changes no comparison
TOY_TOKENS = 16_000  # tokens of KV cache: 25 rows of Eq. (1)
OVERLOAD = 3.0  # arrivals relative to the rate of `vs`; fewer would limit the other policies' throughput
COLUMNS = ("workload", "tau", "policy", "requests_per_s", "over_vs", "valid_share", "mean_of_vs", "batch_size")
TAUS = (1.0, 0.95, 0.8, 0.5)

Lengths = tuple[NDArray[np.int64], NDArray[np.int64]]  # prompt tokens and generated tokens


@dataclass(frozen=True, slots=True)
class ThresholdWorkload:
    """Lengths to draw from, and the costs and the memory of the worker."""

    name: str
    lengths: Lengths
    costs: ServingCurves
    kv_tokens: int
    limit: int


@click.command(help=__doc__)
@click.option("--answers", type=click.Path(exists=True, path_type=Path, dir_okay=False), help="Real answers as JSON.")
@click.option("--requests", default=1000, show_default=True, help="Requests of each simulation.")
@json_option
def main(answers: Path | None, requests: int, results: Results) -> None:
    """Compare chosen thresholds and slices with the published ones and with others."""
    rows: list[Json] = []
    for workload in workloads(answers, 0):
        for tau in TAUS:
            rows += compared(workload, tau, requests, 0)
            results.write(rows)
    print_table(rows, COLUMNS, "One worker, simulated, three times what vs serves")


def workloads(answers: Path | None, seed: int) -> list[ThresholdWorkload]:
    """Make workloads of toy lengths at three costs, and of the real model's lengths if its answers are given."""
    toy = _toy_lengths(seed, 2000)
    made = [
        ThresholdWorkload(f"toy × {factor}", toy, _times(TOY_COSTS, factor), TOY_TOKENS, TOY_LIMIT)
        for factor in (1, 8, 35)
    ]
    if answers:
        real = _real_lengths(answers)
        made += [
            ThresholdWorkload(f"real, {tokens} tokens", real, REAL_COSTS, tokens, REAL_LIMIT) for tokens in (2184, 5006)
        ]
    return made


def compared(workload: ThresholdWorkload, tau: float, requests: int, seed: int) -> list[Json]:
    """Simulate all policies at one quality of predictions; returns their rows."""
    policies: dict[str, Callable[[], Policy]] = {
        "vs": lambda: Vanilla(MOST_PROMPT, workload.limit),
        "magnus": lambda: MagnusPolicy(None, FixedSize(MOST_PROMPT, workload.limit)),
        f"magnus, Φ = {PUBLISHED_THRESHOLD}": lambda: MagnusPolicy(PUBLISHED_THRESHOLD),
        "scls": lambda: SliceLevel(None),
        "scls, S = 128": lambda: SliceLevel(128),
    }
    rows: list[Json] = []
    rate = OVERLOAD * _run(workload, policies["vs"](), tau, requests, 1e9, seed)["requests_per_s"]
    for name, make in policies.items():
        row = _run(workload, make(), tau, requests, rate, seed)
        base = rows[0] if rows else row
        row["over_vs"] = round(row["requests_per_s"] / base["requests_per_s"], 3)
        row["mean_of_vs"] = round(row["mean_s"] / base["mean_s"], 3)
        rows.append({"workload": workload.name, "tau": tau, "policy": name} | row)
    return rows


def _run(workload: ThresholdWorkload, policy: Policy, tau: float, requests: int, rate: float, seed: int) -> Json:
    rng = np.random.default_rng(seed)
    drawn = rng.integers(len(workload.lengths[0]), size=requests)
    prompt, generated = (
        np.minimum(column[drawn], most)
        for column, most in zip(workload.lengths, (MOST_PROMPT, workload.limit), strict=True)
    )
    predicted = generated if tau == 1 else np.minimum(noisy(generated, tau, None, rng), workload.limit)
    upper = generated if tau == 1 else np.minimum(upper_of(predicted, generated), workload.limit)
    at = np.cumsum(rng.exponential(1 / rate, requests))
    arrivals = [
        Arrival(Request(f"{n:06}", *one[:2], workload.limit, *one[2:4]), one[4])
        for n, one in enumerate(
            zip(at.tolist(), prompt.tolist(), predicted.tolist(), upper.tolist(), generated.tolist(), strict=True)
        )
    ]
    fleet = [Instance("w", KvMemory(workload.kv_tokens, 1))]
    trace = simulate(policy, arrivals, fleet, EngineCosts(workload.costs), seed)
    return {
        "requests_per_s": round(trace.requests_per_s, 4),
        "valid_share": round(trace.tokens.valid / (trace.tokens.valid + trace.tokens.invalid), 4),
        "mean_s": round(trace.response_s.mean, 3),
        "batch_size": round(trace.batch_size_mean, 2),
        "out_of_memory": trace.out_of_memory,
    }


def _toy_lengths(seed: int, count: int) -> Lengths:
    rng = random.Random(seed)
    drawn = [
        draw_request(
            rng.choice(tuple(APPLICATIONS)),
            min(MAX_WORDS, max(2, round(rng.lognormvariate(np.log(TOY_WORDS), TOY_WORD_SPREAD)))),
            rng,
        )
        for _ in range(count)
    ]
    prompts = [round(TOKENS_A_WORD * len(f"{one.instruction} {one.input}".split())) for one in drawn]
    return np.array(prompts), np.array([1 + round(TOKENS_A_WORD * len(one.output.split())) for one in drawn])


def _real_lengths(path: Path) -> Lengths:
    answers = json.loads(path.read_text(encoding="utf-8"))["answers"]
    short = [one for one in answers if one["prompt_tokens"] <= MOST_PROMPT]
    return np.array([one["prompt_tokens"] for one in short]), np.array([one["generated_tokens"] for one in short])


def _times(curves: ServingCurves, factor: float) -> ServingCurves:
    p1, p2, p3, p4 = (factor * p for p in curves.prefill)
    d1, d2, d3, d4 = (factor * d for d in curves.decode)
    return ServingCurves((p1, p2, p3, p4), (d1, d2, d3, d4))


if __name__ == "__main__":
    main()
