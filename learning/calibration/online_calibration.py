"""Online correction of predictions, by application, from what really came: a systematic error goes within 50 outcomes,
and the upper quantile covers what it says (adaptive conformal inference, Gibbs and Candès 2021).
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from learning.estimators.length_distribution import bounded
from learning.predictors.length_predictor import Prediction
from scheduling.request import COVERAGE

Numbers = npt.NDArray[np.float64]

BIAS_WINDOW = 40  # newest outcomes that a systematic error is read from
FEWEST = 10
SURE = 3.0  # standard deviations by which over- and underestimates must differ in number to be called systematic
REACH_WINDOW = 200
GAIN = 0.02  # how far one miss moves the level; coverage over n outcomes ends within about 0.1 / (GAIN · n) of it
ROUNDED_UP = 1 - 1e-6  # an upper quantile just above n - 1 tokens is served as n and covers n
HIGHEST, LOWEST = 0.995, 0.5

# What the predictor says of itself, as if observed: scores of a logistic curve whose upper quantile is 1.
BELIEF = np.log(1 / (1 - (np.arange(40) + 0.5) / 40) - 1) / np.log(1 / (1 - COVERAGE) - 1)


@dataclass(slots=True)
class _Application:
    """The outcomes of one application: predicted median, predicted upper quantile, length."""

    outcomes: deque[tuple[float, float, float]] = field(default_factory=lambda: deque(maxlen=REACH_WINDOW))
    level: float = COVERAGE
    bias: float = 1.0
    reach: float = 1.0

    def correct(self, median: float, upper: float) -> tuple[float, float]:
        centre = self.bias * median
        return centre, centre + self.bias * self.reach * float(_gap(median, upper))

    def observe(self, pairs: Sequence[tuple[Prediction, int]]) -> None:
        for said, length in pairs:
            covered = length <= np.ceil(self.correct(said.tokens, said.upper_tokens)[1])
            self.level = float(np.clip(self.level + GAIN * (COVERAGE - covered), LOWEST, HIGHEST))
            self.outcomes.append((said.tokens, said.upper_tokens, length))
        medians, uppers, lengths = np.array(self.outcomes, np.float64).T
        self.bias = _bias(medians[-BIAS_WINDOW:], lengths[-BIAS_WINDOW:])
        scores = (lengths - ROUNDED_UP - self.bias * medians) / (self.bias * _gap(medians, uppers))
        self.reach = max(0.0, float(np.quantile(np.concatenate([BELIEF, scores]), self.level)))


def _gap(median: Numbers | float, upper: Numbers | float) -> Numbers | float:
    """From the median to the upper quantile, never nothing: a forest can be sure of itself and wrong."""
    return upper - median + 1 + 0.05 * median


def _bias(medians: Numbers, lengths: Numbers) -> float:
    """How many times longer than predicted answers are, if they nearly all are longer, or nearly all shorter."""
    above = (lengths > medians).sum() - (lengths < medians).sum()
    if len(lengths) < FEWEST or abs(above) < SURE * np.sqrt(len(lengths)):
        return 1.0
    return float(np.exp(np.median(np.log(np.maximum(lengths, 1) / np.maximum(medians, 1)))))


class Calibration:
    """What was observed of each application's predictions so far, and the correction that follows."""

    def __init__(self) -> None:
        self._applications: dict[str, _Application] = {}

    def observe(self, application: str, pairs: Sequence[tuple[Prediction, int]]) -> None:
        """Learn what came of uncorrected predictions: the lengths of their answers, oldest first."""
        if pairs:
            self._applications.setdefault(application, _Application()).observe(pairs)

    def correct(self, application: str, predicted: Prediction, limit: int) -> Prediction:
        """The prediction as it should have been."""
        known = self._applications.get(application)
        if known is None:
            return predicted
        return bounded(*known.correct(predicted.tokens, predicted.upper_tokens), limit)

    def bias(self, application: str) -> float:
        """How many times longer than predicted this application's answers are."""
        known = self._applications.get(application)
        return known.bias if known else 1.0
