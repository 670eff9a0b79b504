"""Predictors for the time before a model is fitted: the user input length (UILO), or a regression on answers so far."""

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Self

import numpy as np

from learning.estimators.regressions import LogRegression, fit_log_regression
from learning.features.length_predictor import (
    Arrays,
    Outcome,
    Prediction,
    Prompt,
    clamp_prediction,
    group_key,
    input_lengths,
)
from scheduling.costs import Floats
from scheduling.request import COVERAGE

WINDOW = 200  # newest answers kept of each application; any value above a few dozen gives reliable quantiles
FEWEST = 3  # with fewer answers, which show no spread, the predicted upper quantile is the limit
FEWEST_OWN = 5  # an application with fewer errors of its own uses those of all applications; not tuned
BEYOND = np.log(1.5)  # an upper quantile beyond all errors so far is 1.5 times the length with the largest of them


class UserInputLengthPredictor:
    """Predicts the user input length; its upper quantile is the multiple that covers `COVERAGE` of the answers."""

    name = "uilo"

    def __init__(self) -> None:
        self.upper_ratio = np.float64("inf")

    def fit(self, outcomes: Sequence[Outcome]) -> None:
        """Learn the ratio of answer length to input length that `COVERAGE` of the answers do not exceed."""
        ratios = [o.generated_tokens / max(1, o.prompt.input_tokens) for o in outcomes if not o.censored]
        self.upper_ratio = np.float64(np.quantile(ratios, COVERAGE) if ratios else "inf")

    def predict(self, prompts: Sequence[Prompt]) -> list[Prediction]:
        """Return the user input length; before the first `fit` the upper quantile is the limit."""
        predicted = []
        for prompt in prompts:
            length = max(1, prompt.input_tokens)
            upper = min(length * float(self.upper_ratio), prompt.limit_tokens)
            predicted.append(clamp_prediction(length, upper, prompt.limit_tokens))
        return predicted

    def to_arrays(self) -> Arrays:
        """Return the state for `learning.store`."""
        return {"upper_ratio": np.asarray(self.upper_ratio)}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        """Return the stored predictor."""
        predictor = cls()
        predictor.upper_ratio = np.float64(arrays["upper_ratio"])
        return predictor


class RunningRegression:
    """Predicts from the newest answers of each application; before the first answer, the user input length."""

    name = "running"

    def __init__(self) -> None:
        self._answers: dict[str, deque[tuple[float, float]]] = defaultdict(lambda: deque(maxlen=WINDOW))
        self._fitted: tuple[LogRegression, dict[str, float], float] | None = None

    def fit(self, outcomes: Sequence[Outcome]) -> None:
        """Forget all earlier answers and learn from these."""
        self._answers.clear()
        self.observe(outcomes)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Learn from more answers; one cut off at its limit counts as complete, other censored ones are ignored."""
        for outcome in outcomes:
            if not outcome.censored or outcome.generated_tokens >= outcome.prompt.limit_tokens:
                answer = float(outcome.prompt.input_tokens), float(outcome.generated_tokens)
                self._answers[group_key(outcome.prompt.application)].append(answer)
        self._fitted = None

    def predict(self, prompts: Sequence[Prompt]) -> list[Prediction]:
        """Return median and upper quantile of each length; with few answers, the limit is the upper quantile."""
        if not prompts:
            return []
        regression, own_gaps, gap = self._fit()
        applications = [group_key(prompt.application) for prompt in prompts]
        logs = regression.predict(applications, input_lengths(prompts))
        predicted = []
        for prompt, application, log in zip(prompts, applications, logs, strict=True):
            median = float(np.exp(min(log, np.log(prompt.limit_tokens))))
            upper = min(prompt.limit_tokens, median * float(np.exp(own_gaps.get(application, gap))))
            predicted.append(clamp_prediction(median, upper, prompt.limit_tokens))
        return predicted

    def _fit(self) -> tuple[LogRegression, dict[str, float], float]:
        """Return the regression and log gaps from its prediction to the upper quantile, by application and overall."""
        if self._fitted is None:
            names = [name for name, answers in self._answers.items() for _ in answers]
            pairs = np.array([pair for answers in self._answers.values() for pair in answers]).reshape(-1, 2)
            regression, errors = fit_log_regression(names, pairs[:, 0], pairs[:, 1])
            name_of_row = np.array(names, str)
            gaps = {
                name: _upper_gap(errors[name_of_row == name])
                for name, answers in self._answers.items()
                if len(answers) >= FEWEST_OWN
            }
            self._fitted = regression, gaps, _upper_gap(errors) if len(names) >= FEWEST else float("inf")
        return self._fitted


def _upper_gap(errors: Floats) -> float:
    """Return the quantile of these errors that covers `COVERAGE` of future errors, at least 0."""
    ordered = np.sort(errors)
    place = int(np.ceil(COVERAGE * (len(ordered) + 1))) - 1
    return max(0.0, float(ordered[place] if place < len(ordered) else ordered[-1] + BEYOND))
