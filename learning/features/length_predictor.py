"""The interface of length predictors, which map prompts to generation lengths in tokens."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from scheduling.request import COVERAGE

Arrays = dict[str, npt.NDArray[Any]]  # a model's whole state by name, as `learning.store` keeps it
Samples = npt.NDArray[np.float32]  # (prompts, samples): equally likely lengths of each answer, ascending in each row


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is known of a request at its arrival; `input_tokens` is the paper's user input length."""

    application: str
    instruction: str
    input: str
    input_tokens: int
    prompt_tokens: int
    limit_tokens: int


@dataclass(frozen=True, slots=True)
class Prediction:
    """A predicted generation length: policies order by the median and reserve memory by the upper quantile."""

    tokens: int
    upper_tokens: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """A served request: what was predicted when it arrived, and the length of its answer.

    `censored` means that the answer was cut off (limit, cancel, failure) after `generated_tokens`: the complete answer
    would have been longer. `at` is when the request ended, in seconds since the epoch.
    """

    prompt: Prompt
    generated_tokens: int
    censored: bool = False
    predicted_tokens: int | None = None
    predicted_upper_tokens: int | None = None
    at: float = 0.0


class LengthPredictor(Protocol):
    """Predicts generation lengths; before its first `fit` it predicts the user input length."""

    @property
    def name(self) -> str:
        """The name under which `make_predictor` makes it."""
        ...

    def fit(self, outcomes: Sequence[Outcome]) -> None:
        """Learn from the outcomes that are not censored, and forget all earlier ones."""
        ...

    def predict(self, prompts: Sequence[Prompt]) -> list[Prediction]:
        """Return median and upper quantile of each prompt's generation length, between 1 and its limit."""
        ...


def group_key(*parts: str) -> str:
    """Return the key of an application, or of an application and an instruction.

    The key is a digest, because instructions may be long and private.
    """
    return hashlib.sha256("\x1f".join(parts).encode("utf-8", "replace")).hexdigest()[:16]


def complete_outcomes(outcomes: Sequence[Outcome]) -> tuple[list[Prompt], npt.NDArray[np.float64]]:
    """Return the prompts and the lengths of the outcomes that are not censored."""
    complete = [outcome for outcome in outcomes if not outcome.censored]
    return [o.prompt for o in complete], np.array([o.generated_tokens for o in complete], np.float64)


def input_lengths(prompts: Sequence[Prompt]) -> npt.NDArray[np.float64]:
    """Return the user input length of each prompt, (prompts,)."""
    return np.array([prompt.input_tokens for prompt in prompts], np.float64)


def summarise(samples: Samples, prompts: Sequence[Prompt]) -> list[Prediction]:
    """Return median and upper quantile of each row of samples, between 1 and the prompt's limit."""
    medians, uppers = np.quantile(samples, [0.5, COVERAGE], axis=1)
    return [clamp_prediction(m, u, p.limit_tokens) for m, u, p in zip(medians, uppers, prompts, strict=True)]


def summarise_by_mean(samples: Samples, prompts: Sequence[Prompt]) -> list[Prediction]:
    """Return mean and upper quantile of each row of samples, like `summarise`; the mean is a regressor's value."""
    rows = zip(samples.mean(axis=1), np.quantile(samples, COVERAGE, axis=1), prompts, strict=True)
    return [clamp_prediction(mean, upper, prompt.limit_tokens) for mean, upper, prompt in rows]


def clamp_prediction(tokens: float, upper: float, limit: int) -> Prediction:
    """Return whole tokens between 1 and the limit, with an upper quantile that is not below the median."""
    median = min(max(1, round(float(tokens))), limit)
    return Prediction(median, min(max(median, math.ceil(float(upper))), limit))
