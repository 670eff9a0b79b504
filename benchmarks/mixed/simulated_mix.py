"""The simulated half of `benchmarks.mixed`: a published machine, a bulk job from the first instant, Poisson arrivals.

The spare capacity, in tokens, is what the fleet serves of the bulk job alone minus what the interactive requests take.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.inputs.simulated_workloads import noisy, upper_of
from benchmarks.published_costs import LLAMA2_13B_A100_DS
from scheduling.request import Request, ServiceTier
from scheduling.sharing.policy_factory import PolicySettings, make_policy
from scheduling.simulation.engine_costs import EngineCosts
from scheduling.simulation.simulated_worker import Instance
from scheduling.simulation.simulator import Arrival, simulate
from scheduling.simulation.trace import Trace

WORKERS, MACHINE = 4, LLAMA2_13B_A100_DS
LIMIT = 1024  # the most tokens of a prompt or an answer
PROMPT_TOKENS, ANSWER_TOKENS = 200, 150  # medians; the logarithms are normal with the standard deviations below
PROMPT_SIGMA, ANSWER_SIGMA = 0.6, 0.8
TAU = 0.6  # Kendall's tau of the predictions, between what predictors reach on chats and on translations
BULK_LINES = 600  # the lines of the job alone, about twenty times as many as run at once
SECONDS = 120.0  # interactive requests arrive for these seconds, several times the longest answer's


@dataclass(frozen=True)
class Mix:
    """A policy, and the load of interactive requests beside the bulk job."""

    policy: str
    load: float  # the rate of interactive arrivals, as a share of the rate that the fleet serves
    seed: int = 1


def lengths_of(count: int, prefix: str, tier: ServiceTier, instants: Sequence[float], seed: int) -> list[Arrival]:
    """Make `count` requests with log-normal lengths and noisy predictions."""
    rng = np.random.default_rng(seed)
    prompt = np.clip(np.rint(rng.lognormal(np.log(PROMPT_TOKENS), PROMPT_SIGMA, count)), 1, LIMIT).astype(np.int64)
    answer = np.clip(np.rint(rng.lognormal(np.log(ANSWER_TOKENS), ANSWER_SIGMA, count)), 1, LIMIT).astype(np.int64)
    predicted = np.clip(noisy(answer, TAU, None, rng), 1, LIMIT)
    upper = np.clip(upper_of(predicted, answer), 1, LIMIT)
    return [
        Arrival(
            Request(
                id=f"{prefix}{n:06d}",
                arrived_at=float(instants[n]),
                length=int(prompt[n]),
                limit=LIMIT,
                predicted=int(predicted[n]),
                predicted_upper=int(max(upper[n], predicted[n])),
                tier=tier,
                tenant="acme",
            ),
            int(answer[n]),
        )
        for n in range(count)
    ]


def bulk_lines(count: int, seed: int) -> list[Arrival]:
    """Make the lines of a bulk job, which all arrive at once."""
    return lengths_of(count, "b", "flex", [n * 1e-6 for n in range(count)], seed)


def interactive(rate: float, seed: int, seconds: float = SECONDS) -> list[Arrival]:
    """Make Poisson arrivals at `rate` requests a second, for about these seconds."""
    rng = np.random.default_rng(seed)
    instants = np.cumsum(rng.exponential(1 / rate, max(1, round(rate * seconds))))
    return lengths_of(len(instants), "i", "default", instants.tolist(), seed)


def run(policy: str, arrivals: Sequence[Arrival]) -> Trace:
    """Simulate the arrivals under this policy on WORKERS workers like MACHINE."""
    fleet = [Instance(f"w{n}", MACHINE.memory) for n in range(WORKERS)]
    made = make_policy(policy, PolicySettings(max_output_tokens=LIMIT))
    return simulate(made, arrivals, fleet, EngineCosts(MACHINE.curves), seed=1)


def answered_tokens(trace: Trace, prefix: str, until: float) -> int:
    """Return the tokens of answers that ended by this instant, for requests with this prefix of the id."""
    return sum(a.generated for a in trace.answers.values() if a.id.startswith(prefix) and a.finished_at <= until)


def p99_s(trace: Trace) -> float:
    """Return the 99th percentile of the interactive requests' response times, in seconds."""
    return float(np.percentile([a.response_s for a in trace.answers.values() if a.id.startswith("i")], 99))


def measure(mixes: Sequence[Mix]) -> list[dict[str, Any]]:
    """Simulate all mixes; returns a row for each mix, and for each policy a row with the bulk job alone."""
    rows: list[dict[str, Any]] = []
    for policy in dict.fromkeys(mix.policy for mix in mixes):
        alone = run(policy, bulk_lines(BULK_LINES, 0))
        ends = list(alone.completed_at.values())
        tokens_per_s = alone.tokens.valid / alone.makespan_s
        rows.append(
            {
                "policy": policy,
                "bulk_alone_s": alone.makespan_s,
                "tokens_per_s": tokens_per_s,
                "makespan_over_mean_end": max(ends) / float(np.mean(ends)),
            }
        )
        for mix in (mix for mix in mixes if mix.policy == policy):
            requests_per_s = BULK_LINES / alone.makespan_s
            arriving = interactive(mix.load * requests_per_s, mix.seed)
            by_itself = run(policy, arriving)
            lines = bulk_lines(round(requests_per_s * SECONDS), mix.seed + 100)
            together = run(policy, [*arriving, *lines])
            equal = run(policy, [*arriving, *(_as_others(line) for line in lines)])
            spare = tokens_per_s * SECONDS - answered_tokens(by_itself, "i", SECONDS)
            rows.append(
                {
                    "policy": policy,
                    "load": mix.load,
                    "p99_alone_s": p99_s(by_itself),
                    "p99_beside_s": p99_s(together),
                    "p99_ratio": p99_s(together) / p99_s(by_itself),
                    "p99_ratio_without_classes": p99_s(equal) / p99_s(by_itself),
                    "spare_used": answered_tokens(together, "b", SECONDS) / spare,
                }
            )
    return rows


def _as_others(line: Arrival) -> Arrival:
    return replace(line, request=replace(line.request, tier="default"))
