"""Pooling + MLP (Sequence Scheduling, Table 3): the served model's hidden states of a prompt, classified into bins.

torch is loaded when the model is first needed; the trained classifier itself is two matrices.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from learning.estimators.length_distribution import Samples, summarise
from learning.features.vector_cache import Vectors
from learning.predictors.length_bins import BIN_TOKENS, bin_number, bin_width, samples_of_bins
from learning.predictors.length_predictor import Outcome, Prediction, Prompt
from learning.predictors.uilo import UserInputLengthPredictor

FEWEST_OUTCOMES = 20  # as for the paper's forests (`inst_usin`); not tuned


class PooledStatesPredictor:
    """An MLP over mean-pooled hidden states; with fewer than 20 complete answers it predicts the user input length."""

    name = "pooled"

    def __init__(self, source: str) -> None:
        self.source = source
        self.bin_tokens = BIN_TOKENS
        self._layers: dict[str, npt.NDArray[np.float32]] = {}

    def fit(self, outcomes: Sequence[Outcome]) -> None:
        """Train the MLP on pooled hidden states."""
        complete = [o for o in outcomes if not o.censored]
        self._layers = {}
        if len(complete) >= FEWEST_OUTCOMES:
            # Imported here because it loads torch, which processes with other predictors must not.
            from learning.predictors.mlp_classifier import train_classifier

            states = self._pooled_states([o.prompt for o in complete])
            self.bin_tokens = bin_width(complete)
            bins = [bin_number(o.generated_tokens, self.bin_tokens) for o in complete]
            self._layers = train_classifier(states, np.array(bins))

    def predict(self, prompts: Sequence[Prompt]) -> list[Prediction]:
        """Median and upper quantile of each prompt's generation length."""
        if not self._layers or not prompts:
            return UserInputLengthPredictor().predict(prompts)
        return summarise(self._samples(prompts), prompts)

    def _samples(self, prompts: Sequence[Prompt]) -> Samples:
        """The classifier in numpy: standardised states, one hidden layer of rectifiers, a softmax over bins."""
        layers = self._layers
        states = (self._pooled_states(prompts) - layers["centre"]) / layers["spread"]
        hidden = np.maximum(states @ layers["0.weight"].T + layers["0.bias"], 0)
        scores = hidden @ layers["2.weight"].T + layers["2.bias"]
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        return samples_of_bins(odds / odds.sum(axis=1, keepdims=True), self.bin_tokens)

    def _pooled_states(self, prompts: Sequence[Prompt]) -> Vectors:
        # Imported here because it loads torch, which processes with other predictors must not.
        from learning.predictors.language_model import shared_language_model

        model = shared_language_model(self.source)
        return model.pooled_states([model.render(prompt) for prompt in prompts])

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Its state, to be stored; the model by name."""
        return {"source": np.asarray(self.source), "bin": np.asarray(self.bin_tokens)} | self._layers

    @classmethod
    def from_arrays(cls, arrays: dict[str, npt.NDArray[Any]]) -> "PooledStatesPredictor":
        """The stored predictor; the model is loaded at its first use."""
        predictor = cls(str(arrays["source"]))
        predictor.bin_tokens = int(arrays.get("bin", BIN_TOKENS))  # models stored earlier have none
        predictor._layers = {name: values for name, values in arrays.items() if name not in ("source", "bin")}
        return predictor
