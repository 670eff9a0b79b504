"""From equally likely lengths of an answer to the two numbers that policies use, before and while it is generated."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from learning.predictors.length_predictor import Prediction, Prompt
from scheduling.request import COVERAGE

Samples = npt.NDArray[np.float32]  # (prompts, samples), ascending in each row

FEWEST_LEFT = 4  # fewer samples above what is generated say nothing any more


def summarise(samples: Samples, prompts: Sequence[Prompt]) -> list[Prediction]:
    """Median and upper quantile of each row, between 1 and the prompt's limit."""
    medians, uppers = np.quantile(samples, [0.5, COVERAGE], axis=1)
    return [bounded(m, u, p.limit_tokens) for m, u, p in zip(medians, uppers, prompts, strict=True)]


def given(samples: Samples, generated: int, limit: int) -> Prediction:
    """Median and upper quantile of one row's whole length, given that `generated` tokens are out and it goes on.

    Beyond what was ever seen, an answer is taken to have half as many tokens to come as it has, at most twice
    (S3 doubles the reservation of a misprediction).
    """
    left = samples[samples > generated]
    if len(left) < FEWEST_LEFT:
        return bounded(max(1.5 * generated, generated + 1), 2 * generated, limit)
    median, upper = np.quantile(left, [0.5, COVERAGE])
    return bounded(max(median, generated + 1), upper, limit)


def bounded(tokens: float, upper: float, limit: int) -> Prediction:
    """Whole tokens within 1 and the limit, the upper quantile not below the median."""
    median = min(max(1, round(float(tokens))), limit)
    return Prediction(median, min(max(median, math.ceil(float(upper))), limit))
