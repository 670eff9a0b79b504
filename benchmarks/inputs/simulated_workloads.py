"""Workloads for simulations: real lengths from a data directory, arrivals, and predictions of a chosen quality.

A simulation needs only lengths, no texts. `mixed` draws Magnus's eight tasks equally often, `hard` draws chats and code
comments; `azure_*` keep the bursts of a trace; `vicuna` has the lengths of Vicuna-7B's answers to Alpaca prompts.
Predictors are trained on other requests than the simulated ones.
"""

import csv
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.inputs.request_sources import CRUDE, AnsweredRequest, TokenCounter, read_answered
from learning.features.text_encoders import make_encoder
from learning.predictors.predictor_factory import make_predictor
from scheduling.rank_correlation import kendall_tau
from scheduling.request import COVERAGE, Request
from scheduling.simulation.simulator import Arrival

Numbers = NDArray[np.float64]

HARD = ("chat", "code comment")  # the lengths of these applications' answers depend least on their inputs
# Magnus counts each file of these applications as a task (IV-A); two files of bug fixing, or of code comments, are one.
TWO_TASKS = ("machine translation", "code translation")
# Kendall's tau and RMSE in tokens; `useless` has no rank information, `noisy` half of it. Chosen, not measured.
NOISE = {"noisy": (0.5, 100.0), "useless": (0.0, None)}
ALPACA_PROMPT_TOKENS = 20  # about the mean of Alpaca's prompts, which the file does not contain
TRAINING_SHARE = 0.2  # this first share of a trace's requests trains its predictor; not tuned


@dataclass(frozen=True)
class WorkloadLengths:
    """The requests of which workloads are drawn: columns of prompt tokens, generated tokens and predictions."""

    application: tuple[str, ...]
    prompt: NDArray[np.int64]
    generated: NDArray[np.int64]
    predictions: Mapping[str, tuple[NDArray[np.int64], NDArray[np.int64]]]  # by predictor: median, upper quantile
    arrival_s: Numbers | None = None  # the instants of a trace's arrivals; None: arrivals are Poisson
    shares: Numbers | None = None  # the probability that each request is drawn; None: all are equally likely


@dataclass(frozen=True, slots=True)
class Limits:
    """The longest prompt and answer in tokens; longer ones are cut."""

    prompt: int = 1024
    answer: int = 1024


def arrivals(
    lengths: WorkloadLengths,
    predictor: str,
    rate: float,
    seconds: float,
    seed: int,
    limits: Limits,
    growth: float = 1.0,
) -> list[Arrival]:
    """Draw requests at `rate` a second for about `seconds`; a trace is sped up to that rate and keeps its bursts.

    `growth` multiplies the lengths of answers but not of predictions: VSQ's quantized model gives longer answers.
    """
    rng = np.random.default_rng(seed)
    if lengths.arrival_s is None:
        instants = np.cumsum(rng.exponential(1 / rate, max(1, round(rate * seconds))))
        requests = len(lengths.prompt)
        drawn = (
            rng.integers(requests, size=len(instants))
            if lengths.shares is None
            else rng.choice(requests, len(instants), p=lengths.shares)
        )
    else:
        began, ended = lengths.arrival_s[0], lengths.arrival_s[-1]
        instants = (lengths.arrival_s - began) * len(lengths.arrival_s) / (ended - began) / rate
        drawn = np.flatnonzero(instants <= seconds)
    median, upper = lengths.predictions[predictor]
    made = []
    for number, (at, index) in enumerate(zip(instants.tolist(), drawn.tolist(), strict=False)):
        predicted = min(limits.answer, int(median[index]))
        request = Request(
            id=f"{number:07d}",
            arrived_at=at,
            length=min(limits.prompt, int(lengths.prompt[index])),
            limit=limits.answer,
            predicted=predicted,
            predicted_upper=min(limits.answer, max(predicted, int(upper[index]))),
            application=lengths.application[index],
        )
        made.append(Arrival(request, min(limits.answer, max(1, round(growth * int(lengths.generated[index]))))))
    return made


def read_requests(data: Path | None, predictor: str, tokens: TokenCounter = CRUDE) -> dict[str, WorkloadLengths]:
    """Read `mixed` and `hard` from `data/requests`: test requests, with predictions fitted on the training requests.

    Without data the repository's toy requests are read, and there is no `hard`.
    """
    answered = read_answered(data, tokens)
    training, test = [one for one in answered if not one.is_test], [one for one in answered if one.is_test]
    fitted = make_predictor(predictor, make_encoder("hashing"))
    fitted.fit([one.outcome for one in training])
    predictions = fitted.predict([one.outcome.prompt for one in test])
    real = _ints([one.tokens for one in predictions]), _ints([one.upper_tokens for one in predictions])
    prompt = _ints([one.outcome.prompt.prompt_tokens for one in test])
    generated = _ints([one.outcome.generated_tokens for one in test])

    def those(wanted: Callable[[AnsweredRequest], bool]) -> WorkloadLengths:
        rows = np.array([number for number, one in enumerate(test) if wanted(one)], np.int64)
        tasks = [test[row].task for row in rows.tolist()]
        return _with_predictions(tasks, prompt[rows], generated[rows], (real[0][rows], real[1][rows]))

    mixed = those(lambda one: one.application != "chat")
    tasks = [magnus_task(one) for one in test if one.application != "chat"]
    requests = Counter(tasks)
    shares = np.array([1 / (len(requests) * requests[task]) for task in tasks])  # all tasks are drawn equally often
    workloads = {"mixed": replace(mixed, shares=shares)}
    return workloads if data is None else workloads | {"hard": those(lambda one: one.application in HARD)}


def magnus_task(one: AnsweredRequest) -> str:
    """Return which of Magnus's eight tasks (IV-A) the request belongs to."""
    return one.task if one.application in TWO_TASKS else one.application


def read_trace(path: Path) -> WorkloadLengths:
    """Read an Azure trace; its first fifth trains the predictor and is left out of the workload."""
    with path.open(encoding="utf-8") as file:
        rows = [(float(r["arrival_s"]), int(r["input_tokens"]), int(r["output_tokens"])) for r in csv.DictReader(file)]
    at, prompt, generated = (np.array(column) for column in zip(*rows, strict=True))
    prompt, generated = np.maximum(prompt, 1), np.maximum(generated, 1)
    seen = int(TRAINING_SHARE * len(at))
    edges = np.quantile(prompt[:seen], np.linspace(0, 1, 11)[1:-1])
    bins = np.searchsorted(edges, prompt)
    real = np.zeros((2, len(at)), np.int64)
    for number in range(len(edges) + 1):
        in_bin = generated[:seen][bins[:seen] == number]
        in_bin = in_bin if len(in_bin) else generated[:seen]
        real[:, bins == number] = np.quantile(in_bin, [0.5, COVERAGE])[:, None]
    late = slice(seen, None)
    lengths = _with_predictions([path.stem] * (len(at) - seen), prompt[late], generated[late], tuple(real[:, late]))
    return replace(lengths, arrival_s=at[late])


def read_vicuna(path: Path) -> WorkloadLengths:
    """Read Vicuna-7B's answers to Alpaca prompts, four samples of each; the predictions are their `longest` and `mean`.

    These two predictions are from Sequence Scheduling 3.2. The file has no prompts: each has `ALPACA_PROMPT_TOKENS`.
    """
    rows = json.loads(path.read_text(encoding="utf-8"))
    samples = np.array([[row[key] for key in ("L_t0.0", "L_t0.3", "L_t0.5", "L_t0.7")] for row in rows], np.int64)
    longest, mean, generated = samples.max(axis=1), np.rint(samples.mean(axis=1)).astype(np.int64), samples[:, 2]
    prompt = np.full(len(rows), ALPACA_PROMPT_TOKENS)
    return WorkloadLengths(
        ("alpaca",) * len(rows), prompt, generated, {"longest": (longest, longest), "mean": (mean, mean)}
    )


def noisy(generated: NDArray[np.int64], tau: float, rmse: float | None, rng: np.random.Generator) -> NDArray[np.int64]:
    """Make predictions with this Kendall's tau and, as nearly as that allows, this RMSE.

    Normal noise added to the logarithm of the truth gives the tau; scaling the result about its mean changes the RMSE
    but no rank.
    """
    logs, noise = np.log(generated), rng.standard_normal(len(generated))
    sample = rng.choice(len(generated), min(1000, len(generated)), replace=False)
    low, high = 0.0, 50.0
    for _ in range(30):
        middle = (low + high) / 2
        reached = kendall_tau(generated[sample], (logs + middle * noise)[sample])
        low, high = (middle, high) if reached > tau else (low, middle)
    ranked = (logs + low * noise - logs.mean()) / np.std(logs + low * noise) * np.std(logs)
    widths = np.linspace(0.0, 2.0, 81) if rmse is not None else np.ones(1)
    candidates = [np.maximum(1, np.rint(np.exp(logs.mean() + width * ranked))) for width in widths]
    errors = [abs(float(np.sqrt(np.mean((one - generated) ** 2))) - (rmse or 0.0)) for one in candidates]
    return np.asarray(candidates[int(np.argmin(errors))], np.int64)


def upper_of(predicted: NDArray[np.int64], generated: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return upper quantiles: the predictions times one factor, with which nine of ten answers are covered."""
    factor = max(1.0, float(np.quantile(generated / predicted, COVERAGE)))
    return np.asarray(np.ceil(predicted * factor), np.int64)


def _with_predictions(
    application: Sequence[str],
    prompt: NDArray[np.int64],
    generated: NDArray[np.int64],
    real: tuple[NDArray[np.int64], NDArray[np.int64]],
) -> WorkloadLengths:
    """Return these lengths with the predictions of four predictors: true, real, noisy and useless."""
    rng = np.random.default_rng(0)
    predictions = {"true": (generated, generated), "real": real}
    for name, (tau, rmse) in NOISE.items():
        predicted = noisy(generated, tau, rmse, rng)
        predictions[name] = predicted, upper_of(predicted, generated)
    return WorkloadLengths(tuple(application), prompt, generated, predictions)


def _ints(values: Sequence[int]) -> NDArray[np.int64]:
    return np.array(values, np.int64)
