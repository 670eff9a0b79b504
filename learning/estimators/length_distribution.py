"""From a sample of possible answer lengths to the two numbers that policies use: the median and the upper quantile."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from learning.predictors.length_predictor import Prediction, Prompt
from scheduling.request import COVERAGE

Samples = npt.NDArray[np.float32]  # (prompts, samples): equally likely lengths of each answer, ascending in each row


def summarise(samples: Samples, prompts: Sequence[Prompt]) -> list[Prediction]:
    """Median and upper quantile of each row, between 1 and the prompt's limit."""
    medians, uppers = np.quantile(samples, [0.5, COVERAGE], axis=1)
    return [clamp_prediction(m, u, p.limit_tokens) for m, u, p in zip(medians, uppers, prompts, strict=True)]


def clamp_prediction(tokens: float, upper: float, limit: int) -> Prediction:
    """Whole tokens between 1 and the limit, with an upper quantile that is not below the median."""
    median = min(max(1, round(float(tokens))), limit)
    return Prediction(median, min(max(median, math.ceil(float(upper))), limit))
