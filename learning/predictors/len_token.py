"""[LEN]-token fine-tuning (Sequence Scheduling, Table 3): one more token behind the prompt, whose state tells the bin.

The token's embedding and the classifier behind its last hidden state are trained together with LoRA adapters. The model
reads the prompt once and generates nothing. torch is loaded when the model is first needed.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from learning.estimators.length_distribution import summarise
from learning.features.vector_cache import VectorCache, Vectors
from learning.predictors.length_bins import BIN_TOKENS, Target, bin_width, samples_of_bins, target_bins
from learning.predictors.length_predictor import Outcome, Prediction, Prompt
from learning.predictors.perception import EPOCHS, QUERY_AND_KEY
from learning.predictors.uilo import UserInputLengthPredictor

if TYPE_CHECKING:
    from learning.predictors.language_model import LanguageModel

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
