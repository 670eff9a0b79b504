"""What is predicted before anything was fitted: quantiles of the answers so far, in force with the first of them.

An application's answers are read in two ways, as lengths and as multiples of the user input length; the one that would
have predicted its own answers better is used. An application with few answers is predicted by the answers of all.
"""

from collections import defaultdict, deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from learning.predictors.length_predictor import Outcome, Prediction, Prompt, clamp_prediction
from scheduling.request import COVERAGE

Numbers = npt.NDArray[np.float64]

WINDOW = 200  # newest answers of each application; any value above a few dozen gives quantiles that hold
FEWEST = 3  # answers of an application before its own speak instead of those of all: fewer have no spread
BEYOND = 1.5  # an upper quantile above the longest answer seen is taken to be that many times as long


class RunningQuantiles:
    """Predicts from the newest answers of each application; before the first answer, the user input length."""

    name = "running"

    def __init__(self) -> None:
        self._answers: dict[str, deque[tuple[float, float]]] = defaultdict(lambda: deque(maxlen=WINDOW))
        self._of_all: deque[tuple[float, float]] = deque(maxlen=WINDOW)

    def fit(self, outcomes: Sequence[Outcome]) -> None:
        """Forget all answers but these."""
        self._answers.clear()
        self._of_all.clear()
        self.observe(outcomes)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Count these answers; one that was cut off counts with the length that it reached, unless it was cancelled."""
        for outcome in outcomes:
            if not outcome.censored or outcome.generated_tokens >= outcome.prompt.limit_tokens:
                answer = float(outcome.generated_tokens), float(max(1, outcome.prompt.input_tokens))
                self._answers[outcome.prompt.application].append(answer)
                self._of_all.append(answer)

    def predict(self, prompts: Sequence[Prompt]) -> list[Prediction]:
        """Median and upper quantile of each prompt's generation length; unknown, the upper quantile is the limit."""
        quantiles: dict[str, tuple[float, float, bool]] = {}
        for application in {prompt.application for prompt in prompts}:
            own = self._answers.get(application, ())
            answers = own if len(own) >= FEWEST else self._of_all
            if len(answers) >= FEWEST:
                quantiles[application] = _quantiles(np.array(answers).T)
        return [self._predict(prompt, quantiles.get(prompt.application)) for prompt in prompts]

    @staticmethod
    def _predict(prompt: Prompt, quantiles: tuple[float, float, bool] | None) -> Prediction:
        if quantiles is None:
            return clamp_prediction(max(1, prompt.input_tokens), prompt.limit_tokens, prompt.limit_tokens)
        median, upper, proportional = quantiles
        unit = max(1, prompt.input_tokens) if proportional else 1
        return clamp_prediction(median * unit, upper * unit, prompt.limit_tokens)


def _quantiles(answers: Numbers) -> tuple[float, float, bool]:
    """Median, upper quantile, and whether they are multiples of the input length rather than lengths."""
    lengths, inputs = answers
    ratios = lengths / inputs
    proportional = _spread(ratios) < _spread(lengths)
    values = np.sort(ratios if proportional else lengths)
    place = int(np.ceil(COVERAGE * (len(values) + 1))) - 1
    upper = values[place] if place < len(values) else BEYOND * values[-1]
    return float(np.median(values)), float(upper), proportional


def _spread(values: Numbers) -> float:
    """Mean absolute deviation of the logarithms from their median: the error of predicting the median."""
    logs = np.log(np.maximum(values, 1e-9))
    return float(np.abs(logs - np.median(logs)).mean())
