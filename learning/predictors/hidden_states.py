"""Predictors that classify the served model's hidden states into bins of lengths (Sequence Scheduling, Table 3).

`pooled` averages the states of the prompt's tokens and trains an MLP on the averages. The [LEN]-token variant of
`perception` appends a token to the prompt and reads the bin from that token's state; the token's embedding, the
classifier and LoRA adapters are trained together. The model reads the prompt once and generates nothing.
"""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from scipy.special import softmax

from extras import load
from learning.features.length_predictor import Arrays, Outcome, Prediction, Prompt, summarise
from learning.features.text_encoders import VectorCache, Vectors
from learning.predictors.cold_start import UserInputLengthPredictor
from learning.predictors.length_bins import BIN_TOKENS, Target, bin_number, bin_width, samples_of_bins, target_bins
from learning.predictors.perception import EPOCHS, QUERY_AND_KEY

FEWEST_OUTCOMES = 20  # complete answers that a fit needs, as in `paper_forests`; not tuned
HEAD = ("token", "weight", "bias")  # names of the stored arrays of embedding and classifier; all others are adapters


class PooledStatesPredictor:
    """An MLP over mean-pooled hidden states; with fewer than 20 complete answers it predicts the user input length."""

    name = "pooled"

    def __init__(self, source: str) -> None:
        self.source = source
        self.bin_tokens = BIN_TOKENS
        self._layers: Arrays = {}

    def fit(self, outcomes: Sequence[Outcome]) -> None:
        """Train the MLP on pooled hidden states."""
        complete = [o for o in outcomes if not o.censored]
        self._layers = {}
        if len(complete) >= FEWEST_OUTCOMES:
            states = self._pooled_states([o.prompt for o in complete])
            self.bin_tokens = bin_width(complete)
            bins = [bin_number(o.generated_tokens, self.bin_tokens) for o in complete]
            self._layers = dict(self._language_model().train_classifier(states, np.array(bins)))

    def predict(self, prompts: Sequence[Prompt]) -> list[Prediction]:
        """Return median and upper quantile of each prompt's generation length."""
        if not self._layers or not prompts:
            return UserInputLengthPredictor().predict(prompts)
        layers = self._layers  # weights of one hidden layer with ReLU
        states = (self._pooled_states(prompts) - layers["centre"]) / layers["spread"]
        hidden = np.maximum(states @ layers["0.weight"].T + layers["0.bias"], 0)
        scores = hidden @ layers["2.weight"].T + layers["2.bias"]
        return summarise(samples_of_bins(softmax(scores, axis=1), self.bin_tokens), prompts)

    def _pooled_states(self, prompts: Sequence[Prompt]) -> Vectors:
        model = self._language_model().shared_language_model(self.source)
        states: Vectors = model.pooled_states([model.render(prompt) for prompt in prompts])
        return states

    def _language_model(self) -> Any:
        return load("learning.predictors.language_model", self.name)

    def to_arrays(self) -> Arrays:
        """Return the state for `learning.store`, with the model's name."""
        return {"source": np.asarray(self.source), "bin": np.asarray(self.bin_tokens)} | self._layers

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        """Return the stored predictor; the model is loaded at its first use."""
        predictor = cls(str(arrays["source"]))
        predictor.bin_tokens = int(arrays.get("bin", BIN_TOKENS))  # models of earlier releases lack the width of a bin
        predictor._layers = {name: values for name, values in arrays.items() if name not in ("source", "bin")}
        return predictor


class LenTokenPredictor:
    """Reads the bin from the state of a [LEN] token; before its first fit it predicts the user input length."""

    name = "perception"

    def __init__(
        self, source: str, *, target: Target = "longest", epochs: int = EPOCHS, rate: float | None = None
    ) -> None:
        self.source, self.target, self.epochs, self.rate = source, target, epochs, rate
        self.bin_tokens = BIN_TOKENS
        self._weights: Arrays = {}
        self._loaded: Any = None  # a `language_model.LanguageModel`
        self._states = VectorCache(self._read_states, 0)

    def fit(self, outcomes: Sequence[Outcome]) -> None:
        """Tune adapters, embedding and classifier on the bins of these outcomes."""
        complete = [o for o in outcomes if not o.censored]
        if not complete:
            return
        self._weights, self._loaded = {}, None
        model = self._model()
        self.bin_tokens = bin_width(complete)
        bins = target_bins(complete, self.target, self.bin_tokens)
        texts = [model.render(prompt) for prompt in bins]
        numbers = list(bins.values())
        self._use(self._tuning().tune_len_token(model, texts, numbers, epochs=self.epochs, rate=self.rate))

    def predict(self, prompts: Sequence[Prompt]) -> list[Prediction]:
        """Return median and upper quantile of each prompt's distribution over bins."""
        if not self._weights or not prompts:
            return UserInputLengthPredictor().predict(prompts)
        model = self._model()
        states = self._states.encode([model.render(prompt) for prompt in prompts]).astype(np.float64)
        scores = states @ self._weights["weight"].T + self._weights["bias"]
        return summarise(samples_of_bins(softmax(scores, axis=1), self.bin_tokens), prompts)

    def _use(self, weights: Arrays) -> None:
        self._weights = weights
        self._states = VectorCache(self._read_states, weights["weight"].shape[1])

    def _read_states(self, texts: list[str]) -> Vectors:
        states: Vectors = self._tuning().len_token_states(self._model(), texts, self._weights["token"])
        return states

    def _model(self) -> Any:
        if self._loaded is None:
            adapters = {name: values for name, values in self._weights.items() if name not in HEAD}
            self._loaded = self._tuning().load_with_adapters(self.source, QUERY_AND_KEY, adapters)
        return self._loaded

    def _tuning(self) -> Any:
        return load("learning.predictors.lora_tuning", self.name)

    def to_arrays(self) -> Arrays:
        """Return the state for `learning.store`, with the model's name."""
        return {"source": np.asarray(self.source), "bin": np.asarray(self.bin_tokens)} | self._weights

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        """Return the stored predictor; the model is loaded at its first use."""
        predictor = cls(str(arrays["source"]))
        predictor.bin_tokens = int(arrays["bin"])
        weights = {name: values for name, values in arrays.items() if name not in ("source", "bin")}
        if weights:
            predictor._use(weights)
        return predictor
