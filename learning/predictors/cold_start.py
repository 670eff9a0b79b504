"""UILO: the user input length is the prediction. Every other predictor predicts this before it has learned anything."""

from collections import defaultdict, deque
from collections.abc import Sequence

import numpy as np

from learning.estimators.regressions import LogRegression, fit_log_regression
from learning.predictors.length_predictor import Outcome, Prediction, Prompt, clamp_prediction, group_key
from scheduling.costs import Floats
from scheduling.request import COVERAGE


class UserInputLengthPredictor:
    """Predicts the user input length; its upper quantile is a multiple of it that covers `COVERAGE` of the answers."""

    name = "uilo"

    def __init__(self) -> None:
        self.upper_ratio = np.float64("inf")

    def fit(self, outcomes: Sequence[Outcome]) -> None:
        """Learn how many times longer than their inputs answers become."""
        ratios = [o.generated_tokens / max(1, o.prompt.input_tokens) for o in outcomes if not o.censored]
        self.upper_ratio = np.float64(np.quantile(ratios, COVERAGE) if ratios else "inf")

    def predict(self, prompts: Sequence[Prompt]) -> list[Prediction]:
        """The user input length; before the first `fit` the upper quantile is the limit."""
        return [self._predict(p) for p in prompts]

    def _predict(self, prompt: Prompt) -> Prediction:
        length = max(1, prompt.input_tokens)
        upper = min(length * float(self.upper_ratio), prompt.limit_tokens)
        return clamp_prediction(length, upper, prompt.limit_tokens)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Its state, to be stored."""
        return {"upper_ratio": np.asarray(self.upper_ratio)}

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> "UserInputLengthPredictor":
        """The stored predictor."""
        predictor = cls()
        predictor.upper_ratio = np.float64(arrays["upper_ratio"])
        return predictor


WINDOW = 200  # newest answers of each application; any value above a few dozen gives quantiles that hold
FEWEST = 3  # answers before an upper quantile below the limit is predicted: fewer have no spread
FEWEST_OWN = 5  # errors of an application before they decide its upper quantile instead of those of all; not tuned
BEYOND = np.log(1.5)  # an upper quantile above the longest answer seen is taken to be that many times as long


class RunningRegression:
    """Predicts from the newest answers of each application; before the first answer, the user input length."""

    name = "running"

    def __init__(self) -> None:
        self._answers: dict[str, deque[tuple[float, float]]] = defaultdict(lambda: deque(maxlen=WINDOW))
        self._fitted: tuple[LogRegression, dict[str, float], float] | None = None

    def fit(self, outcomes: Sequence[Outcome]) -> None:
        """Forget all answers but these."""
        self._answers.clear()
        self.observe(outcomes)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Count these answers; one that was cut off counts with the length that it reached, unless it was cancelled."""
        for outcome in outcomes:
            if not outcome.censored or outcome.generated_tokens >= outcome.prompt.limit_tokens:
                answer = float(outcome.prompt.input_tokens), float(outcome.generated_tokens)
                self._answers[group_key(outcome.prompt.application)].append(answer)
        self._fitted = None

    def predict(self, prompts: Sequence[Prompt]) -> list[Prediction]:
        """Median and upper quantile of each prompt's generation length; unknown, the upper quantile is the limit."""
        if not prompts:
            return []
        regression, own_gaps, gap = self._fit()
        applications = [group_key(prompt.application) for prompt in prompts]
        inputs = np.array([prompt.input_tokens for prompt in prompts], np.float64)
        predicted = []
        for prompt, application, log in zip(
            prompts, applications, regression.predict(applications, inputs), strict=True
        ):
            median = float(np.exp(min(log, np.log(prompt.limit_tokens))))
            upper = min(prompt.limit_tokens, median * float(np.exp(own_gaps.get(application, gap))))
            predicted.append(clamp_prediction(median, upper, prompt.limit_tokens))
        return predicted

    def _fit(self) -> tuple[LogRegression, dict[str, float], float]:
        """The regression, and how far above its prediction the upper quantile is: of each application, and of all."""
        if self._fitted is None:
            names = [name for name, answers in self._answers.items() for _ in answers]
            pairs = np.array([pair for answers in self._answers.values() for pair in answers]).reshape(-1, 2)
            regression, missed = fit_log_regression(names, pairs[:, 0], pairs[:, 1])
            of_one = np.array(names, str)
            gaps = {
                name: _upper_gap(missed[of_one == name])
                for name, answers in self._answers.items()
                if len(answers) >= FEWEST_OWN
            }
            self._fitted = regression, gaps, _upper_gap(missed) if len(names) >= FEWEST else float("inf")
        return self._fitted


def _upper_gap(missed: Floats) -> float:
    """The quantile of these errors that covers `COVERAGE` of as many new ones, never below 0."""
    ordered = np.sort(missed)
    place = int(np.ceil(COVERAGE * (len(ordered) + 1))) - 1
    return max(0.0, float(ordered[place] if place < len(ordered) else ordered[-1] + BEYOND))
