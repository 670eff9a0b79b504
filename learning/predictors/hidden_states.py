"""Pooling + MLP (Sequence Scheduling, Table 3): the served model's hidden states of a prompt, classified into bins.

torch is loaded when the model is first needed; the trained classifier itself is two matrices.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from learning.features.text_encoders import VectorCache, Vectors
from learning.predictors.cold_start import UserInputLengthPredictor
from learning.predictors.length_bins import BIN_TOKENS, Target, bin_number, bin_width, samples_of_bins, target_bins
from learning.predictors.length_predictor import Outcome, Prediction, Prompt, Samples, summarise
from learning.predictors.perception import EPOCHS, QUERY_AND_KEY

if TYPE_CHECKING:
    from learning.predictors.language_model import LanguageModel


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
            from learning.predictors.language_model import train_classifier

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


HEAD = ("token", "weight", "bias")  # of the stored arrays: embedding and classifier; all others are adapters


class LenTokenPredictor:
    """Reads the bin from the state of a [LEN] token; before its first fit it predicts the user input length."""

    name = "perception"

    def __init__(
        self, source: str, *, target: Target = "longest", epochs: int = EPOCHS, rate: float | None = None
    ) -> None:
        self.source, self.target, self.epochs, self.rate = source, target, epochs, rate
        self.bin_tokens = BIN_TOKENS
        self._weights: dict[str, npt.NDArray[Any]] = {}
        self._loaded: LanguageModel | None = None
        self._states = VectorCache(self._read, 0)

    def fit(self, outcomes: Sequence[Outcome]) -> None:
        """Tune adapters, embedding and classifier on the bins of these outcomes."""
        complete = [o for o in outcomes if not o.censored]
        if not complete:
            return
        # Imported here because it loads torch, which processes with other predictors must not.
        from learning.predictors.lora_tuning import tune_len_token

        self._weights, self._loaded = {}, None
        model = self._model()
        self.bin_tokens = bin_width(complete)
        bins = target_bins(complete, self.target, self.bin_tokens)
        texts = [model.render(prompt) for prompt in bins]
        self._weights = tune_len_token(model, texts, list(bins.values()), epochs=self.epochs, rate=self.rate, seed=0)
        self._states = VectorCache(self._read, self._weights["weight"].shape[1])

    def predict(self, prompts: Sequence[Prompt]) -> list[Prediction]:
        """Median and upper quantile of each prompt's distribution over bins."""
        if not self._weights or not prompts:
            return UserInputLengthPredictor().predict(prompts)
        model = self._model()
        states = self._states.encode([model.render(prompt) for prompt in prompts]).astype(np.float64)
        scores = states @ self._weights["weight"].T + self._weights["bias"]
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        return summarise(samples_of_bins(odds / odds.sum(axis=1, keepdims=True), self.bin_tokens), prompts)

    def _read(self, texts: list[str]) -> Vectors:
        from learning.predictors.lora_tuning import len_token_states  # loads torch

        return len_token_states(self._model(), texts, self._weights["token"])

    def _model(self) -> "LanguageModel":
        if self._loaded is None:
            from learning.predictors.language_model import LanguageModel  # loads torch
            from learning.predictors.lora_tuning import add_adapters, load_adapter_weights

            self._loaded = LanguageModel(self.source)
            self._loaded.model = add_adapters(self._loaded.model, QUERY_AND_KEY)
            adapters = {name: values for name, values in self._weights.items() if name not in HEAD}
            if adapters:
                load_adapter_weights(self._loaded.model, adapters)
        return self._loaded

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Its state, to be stored; the model by name."""
        return {"source": np.asarray(self.source), "bin": np.asarray(self.bin_tokens)} | self._weights

    @classmethod
    def from_arrays(cls, arrays: dict[str, npt.NDArray[Any]]) -> "LenTokenPredictor":
        """The stored predictor; the model is loaded at its first use."""
        predictor = cls(str(arrays["source"]))
        predictor.bin_tokens = int(arrays["bin"])
        predictor._weights = {name: values for name, values in arrays.items() if name not in ("source", "bin")}
        if predictor._weights:
            predictor._states = VectorCache(predictor._read, predictor._weights["weight"].shape[1])
        return predictor
