"""The workloads of `benchmarks.rivals`: `mixed`, `hard`, and chats with heavy tails that come in bursts."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.inputs.simulated_workloads import Limits, WorkloadLengths, arrivals, noisy, read_requests, upper_of
from scheduling.simulation.simulator import Arrival

WORKLOADS = ("mixed", "hard", "chat")
TAUS = {"useless": 0.0, "tau 0.4": 0.4, "perfect": 1.0}  # Kendall's tau of predicted and true lengths
LIMITS = Limits(1024, 2048)
# Chats: the logarithms of prompts and answers are normal; 1 % of the answers have ten times the median's tokens. Gaps
# between arrivals are gamma-distributed with this shape (a coefficient of variation of 2), as in BurstGPT's traces.
PROMPT_TOKENS, PROMPT_SIGMA, ANSWER_TOKENS, ANSWER_SIGMA, GAP_SHAPE = 100.0, 1.0, 150.0, 1.1, 0.25
CLIENTS = 8  # the client of rank n sends a share of 1/n of the first one's chats


def read_workloads(data: Path | None) -> dict[str, WorkloadLengths]:
    """Return `mixed` and, with data, `hard`, with predictions of each quality in TAUS."""
    read = read_requests(data, "uilo")  # this predictor needs no fit; its predictions are not used
    return {name: with_predictions(lengths, 0) for name, lengths in read.items()}


def with_predictions(lengths: WorkloadLengths, seed: int) -> WorkloadLengths:
    """Return the lengths with medians of each quality in TAUS, and the upper quantiles that honest errors give."""
    random, generated = np.random.default_rng(seed), lengths.generated
    medians = {name: noisy(generated, tau, None, random) if tau < 1 else generated for name, tau in TAUS.items()}
    return replace(lengths, predictions={name: (one, upper_of(one, generated)) for name, one in medians.items()})


def chats(count: int, seed: int) -> WorkloadLengths:
    """Draw chats and the instants of their arrivals."""
    random = np.random.default_rng(seed)
    prompt = np.clip(random.lognormal(np.log(PROMPT_TOKENS), PROMPT_SIGMA, count), 1, LIMITS.prompt).astype(np.int64)
    answer = np.clip(random.lognormal(np.log(ANSWER_TOKENS), ANSWER_SIGMA, count), 1, LIMITS.answer).astype(np.int64)
    shares = 1 / np.arange(1, CLIENTS + 1)
    clients = random.choice(CLIENTS, count, p=shares / shares.sum())
    instants = np.cumsum(random.gamma(GAP_SHAPE, size=count))
    drawn = WorkloadLengths(tuple(f"client {one}" for one in clients), prompt, answer, {}, instants)
    return with_predictions(drawn, seed)


def draw(lengths: WorkloadLengths | None, prediction: str, rate: float, count: int, seed: int) -> Sequence[Arrival]:
    """Draw requests at a mean rate a second; without lengths they are chats, which all come within twice the time."""
    lengths = lengths or chats(count, seed)
    return arrivals(lengths, prediction, rate, (1 if lengths.arrival_s is None else 2) * count / rate, seed, LIMITS)
