"""UILO: the user input length is the prediction. What every predictor says before it has learned anything."""

from collections.abc import Sequence

import numpy as np

from learning.estimators.length_distribution import bounded
from learning.predictors.length_predictor import Outcome, Prediction, Prompt
from scheduling.request import COVERAGE


class UserInputLength:
    """Predicts the user input length; the upper quantile is that times what `COVERAGE` of the answers needed."""

    name = "uilo"

    def __init__(self) -> None:
        self.upper_ratio = np.float64("inf")

    def fit(self, outcomes: Sequence[Outcome]) -> None:
        """Learn how much longer than its input an answer gets."""
        ratios = [o.generated_tokens / max(1, o.prompt.input_tokens) for o in outcomes if not o.censored]
        self.upper_ratio = np.float64(np.quantile(ratios, COVERAGE) if ratios else "inf")

    def predict(self, prompts: Sequence[Prompt]) -> list[Prediction]:
        """The user input length; unfitted, the upper quantile is the limit."""
        return [self._predict(p) for p in prompts]

    def _predict(self, prompt: Prompt) -> Prediction:
        length = max(1, prompt.input_tokens)
        return bounded(length, min(length * float(self.upper_ratio), prompt.limit_tokens), prompt.limit_tokens)

    def remaining(self, prompt: Prompt, generated: int) -> Prediction:
        """The prediction while it can still come true, then half as many tokens again."""
        before = self._predict(prompt)
        if generated < before.tokens:
            return before
        return bounded(1.5 * generated + 1, max(before.upper_tokens, 2 * generated), prompt.limit_tokens)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Its state, to be stored."""
        return {"upper_ratio": np.asarray(self.upper_ratio)}

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> "UserInputLength":
        """The stored predictor."""
        predictor = cls()
        predictor.upper_ratio = np.float64(arrays["upper_ratio"])
        return predictor
