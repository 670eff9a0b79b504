"""Pooling + MLP (Sequence Scheduling, Table 3): the served model's hidden states of a prompt, classified into bins.

torch is loaded once a model is needed; the trained classifier itself is two matrices.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from learning.estimators.length_distribution import Samples, given, summarise
from learning.predictors.length_bins import bin_of, samples_of
from learning.predictors.length_predictor import Outcome, Prediction, Prompt
from learning.predictors.uilo import UserInputLength

if TYPE_CHECKING:
    from learning.predictors.language_model import LanguageModel

Numbers = npt.NDArray[np.float32]

FEWEST_OUTCOMES = 20


class PooledStates:
    """An MLP over mean-pooled hidden states; with fewer than 20 whole answers the user input length stands in."""

    name = "pooled"

    def __init__(self, source: str) -> None:
        self.source = source
        self._loaded: LanguageModel | None = None
        self._layers: dict[str, Numbers] = {}

    def fit(self, outcomes: Sequence[Outcome]) -> None:
        """Train the MLP on pooled hidden states."""
        whole = [o for o in outcomes if not o.censored]
        self._layers = {}
        if len(whole) >= FEWEST_OUTCOMES:
            # here and not above: it loads torch, and processes with other predictors must not
            from learning.predictors.mlp_classifier import train_classifier

            states = self._model().pooled([o.prompt for o in whole])
            self._layers = train_classifier(states, np.array([bin_of(o.generated_tokens) for o in whole]))

    def predict(self, prompts: Sequence[Prompt]) -> list[Prediction]:
        """Median and upper quantile of each prompt's generation length."""
        if not self._layers or not prompts:
            return UserInputLength().predict(prompts)
        return summarise(self._samples(prompts), prompts)

    def remaining(self, prompt: Prompt, generated: int) -> Prediction:
        """Median and upper quantile of the whole length, given that `generated` tokens are out and it goes on."""
        if not self._layers:
            return UserInputLength().remaining(prompt, generated)
        return given(self._samples([prompt])[0], generated, prompt.limit_tokens)

    def _samples(self, prompts: Sequence[Prompt]) -> Samples:
        """The classifier by hand: standardised states, one hidden layer of rectifiers, a softmax over bins."""
        layers = self._layers
        states = (self._model().pooled(prompts) - layers["centre"]) / layers["spread"]
        hidden = np.maximum(states @ layers["0.weight"].T + layers["0.bias"], 0)
        scores = hidden @ layers["2.weight"].T + layers["2.bias"]
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        return samples_of(odds / odds.sum(axis=1, keepdims=True))

    def _model(self) -> "LanguageModel":
        if self._loaded is None:
            # here and not above: it loads torch, and processes with other predictors must not
            from learning.predictors.language_model import LanguageModel

            self._loaded = LanguageModel(self.source)
        return self._loaded

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Its state, to be stored; the model by name."""
        return {"source": np.asarray(self.source)} | self._layers

    @classmethod
    def from_arrays(cls, arrays: dict[str, npt.NDArray[Any]]) -> "PooledStates":
        """The stored predictor; the model is loaded at its first use."""
        predictor = cls(str(arrays["source"]))
        predictor._layers = {name: values for name, values in arrays.items() if name != "source"}
        return predictor
