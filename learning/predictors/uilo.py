"""UILO: the user input length is the prediction. Every other predictor predicts this before it has learned anything."""

from collections.abc import Sequence

import numpy as np

from learning.estimators.length_distribution import clamp_prediction
from learning.predictors.length_predictor import Outcome, Prediction, Prompt
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
