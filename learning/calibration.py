"""Online correction of a length predictor in service, by application, from the lengths of real answers.

A systematic error is corrected within 50 outcomes. The upper quantile is scaled until it covers the share of answers
that it promises (adaptive conformal inference, Gibbs and Candès 2021).
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from learning.features.length_predictor import LengthPredictor, Outcome, Prediction, Prompt, clamp_prediction
from scheduling.costs import Floats
from scheduling.request import COVERAGE

BIAS_WINDOW = 40  # newest outcomes from which a systematic error is estimated; fewer follow a change faster; not tuned
# A bias is estimated from at least this many outcomes: below 9, even errors all of one sign are not significant.
FEWEST_OUTCOMES = 10
# an error is systematic if the numbers of over- and underestimates differ by this many standard deviations
SIGNIFICANT_DEVIATIONS = 3.0
SCORE_WINDOW = 200  # newest outcomes that scale the upper quantile: a 0.9 quantile needs more than a median; not tuned
# An answer above its upper quantile raises the level by COVERAGE · LEVEL_STEP, others lower it by (1 - COVERAGE) ·
# LEVEL_STEP. The coverage of n outcomes then ends within about 0.1 / (LEVEL_STEP · n) of COVERAGE.
LEVEL_STEP = 0.02
ROUNDING = 1 - 1e-6  # an upper quantile just above n - 1 tokens is served as n and covers n
HIGHEST_LEVEL, LOWEST_LEVEL = 0.995, 0.5  # 200 scores resolve no higher level; an upper quantile is above the median
# Number of predictions kept until their answers come: enough for 40 s at 100 answers a second; 1 MB. Not tuned.
MOST_REMEMBERED = 4096

# These scores decide while there are few outcomes: 40 quantiles of a logistic distribution whose upper quantile is 1,
# as the predictor claims. More of them delay the correction, fewer let the first outcomes decide; not tuned.
_LEVELS = (np.arange(40) + 0.5) / 40
PRIOR_SCORES = np.log(1 / (1 - _LEVELS) - 1) / np.log(1 / (1 - COVERAGE) - 1)


@dataclass(slots=True)
class _ApplicationCalibration:
    """One application's newest outcomes (predicted median, predicted upper quantile, length) and their correction."""

    outcomes: deque[tuple[float, float, float]] = field(default_factory=lambda: deque(maxlen=SCORE_WINDOW))
    level: float = COVERAGE  # the level of the quantile of scores with which COVERAGE of the answers are covered
    bias: float = 1.0  # the predicted median is multiplied by this
    upper_scale: float = 1.0  # the gap from median to upper quantile is multiplied by this

    def correct(self, median: float, upper: float) -> tuple[float, float]:
        corrected = self.bias * median
        return corrected, corrected + self.bias * self.upper_scale * float(_upper_gap(median, upper))

    def observe(self, pairs: Sequence[tuple[Prediction, int]]) -> None:
        for predicted, length in pairs:
            covered = length <= np.ceil(self.correct(predicted.tokens, predicted.upper_tokens)[1])
            step = LEVEL_STEP * (COVERAGE - covered)
            self.level = float(np.clip(self.level + step, LOWEST_LEVEL, HIGHEST_LEVEL))
            self.outcomes.append((predicted.tokens, predicted.upper_tokens, length))
        medians, uppers, lengths = np.array(self.outcomes, np.float64).T
        self.bias = _systematic_error(medians[-BIAS_WINDOW:], lengths[-BIAS_WINDOW:])
        scores = (lengths - ROUNDING - self.bias * medians) / (self.bias * _upper_gap(medians, uppers))
        self.upper_scale = max(0.0, float(np.quantile(np.concatenate([PRIOR_SCORES, scores]), self.level)))


def _upper_gap(median: Floats | float, upper: Floats | float) -> Floats | float:
    """Return the gap from median to upper quantile, made larger than 0: a forest may wrongly predict no spread."""
    return upper - median + 1 + 0.05 * median


def _systematic_error(medians: Floats, lengths: Floats) -> float:
    """Returns the median length / prediction if over- and underestimates differ significantly in number, else 1."""
    excess = (lengths > medians).sum() - (lengths < medians).sum()
    if len(lengths) < FEWEST_OUTCOMES or abs(excess) < SIGNIFICANT_DEVIATIONS * np.sqrt(len(lengths)):
        return 1.0
    return float(np.exp(np.median(np.log(np.maximum(lengths, 1) / np.maximum(medians, 1)))))


class OnlineCalibration:
    """Corrects each application's predictions by the outcomes seen so far."""

    def __init__(self) -> None:
        self._applications: dict[str, _ApplicationCalibration] = {}

    def observe(self, application: str, pairs: Sequence[tuple[Prediction, int]]) -> None:
        """Learn from uncorrected predictions and the lengths of their answers, oldest first."""
        if pairs:
            self._applications.setdefault(application, _ApplicationCalibration()).observe(pairs)

    def correct(self, application: str, predicted: Prediction, limit: int) -> Prediction:
        """Return the corrected prediction; it is unchanged for an application without outcomes."""
        known = self._applications.get(application)
        if known is None:
            return predicted
        return clamp_prediction(*known.correct(predicted.tokens, predicted.upper_tokens), limit)


class CalibratedPredictor:
    """A length predictor whose systematic errors and coverage are corrected by outcomes that came after its fit."""

    def __init__(self, predictor: LengthPredictor) -> None:
        self.predictor = predictor
        self.name = predictor.name
        self.calibration = OnlineCalibration()
        self._remembered: dict[int, Prediction] = {}  # uncorrected, by the prompt's hash, oldest first

    def fit(self, outcomes: Sequence[Outcome]) -> None:
        """Fit the predictor again and forget the old one's corrections."""
        self.predictor.fit(outcomes)
        self.calibration = OnlineCalibration()
        self._remembered.clear()

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Learn from outcomes that the predictor was not fitted on.

        Prompts that it does not remember are predicted again: another version may have served them. An answer cut off
        at its limit counts as complete, because predictions end there, too. Other censored answers are left out.
        """
        ended = [o for o in outcomes if not o.censored or o.generated_tokens >= o.prompt.limit_tokens]
        predicted = self._uncorrected([o.prompt for o in ended])
        by_application = defaultdict(list)
        for outcome, prediction in zip(ended, predicted, strict=True):
            by_application[outcome.prompt.application].append((prediction, outcome.generated_tokens))
        for application, pairs in by_application.items():
            self.calibration.observe(application, pairs)

    def predict(self, prompts: Sequence[Prompt]) -> list[Prediction]:
        """Return median and upper quantile of each prompt's generation length, corrected."""
        predicted = self._uncorrected(prompts)
        return [
            self.calibration.correct(prompt.application, prediction, prompt.limit_tokens)
            for prompt, prediction in zip(prompts, predicted, strict=True)
        ]

    def _uncorrected(self, prompts: Sequence[Prompt]) -> list[Prediction]:
        keys = [hash(prompt) for prompt in prompts]
        unknown = {key: one for key, one in zip(keys, prompts, strict=True) if key not in self._remembered}
        if unknown:
            self._remembered.update(zip(unknown, self.predictor.predict(list(unknown.values())), strict=True))
        predicted = [self._remembered[key] for key in keys]
        while len(self._remembered) > MOST_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]
        return predicted
