"""INST and USIN (Magnus III-B): a quantile forest on the user input length, the instruction and the user's text."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from learning.estimators.forest_training import grow
from learning.estimators.length_distribution import Samples, given, summarise
from learning.estimators.quantile_forest import QuantileForest
from learning.features.compressed_features import (
    Matrix,
    application_values,
    user_input_length,
    user_values,
)
from learning.features.text_encoders import Encoder, make_encoder
from learning.predictors.length_predictor import Outcome, Prediction, Prompt
from learning.predictors.uilo import UserInputLength

FEWEST_OUTCOMES = 20


class SemanticForest:
    """One forest for all applications; `usin` sees the user's text, `inst` only instruction and length."""

    def __init__(self, name: str, encoder: Encoder, forest: QuantileForest | None = None) -> None:
        self.name = name
        self.encoder = encoder
        self.forest = forest

    def fit(self, outcomes: Sequence[Outcome]) -> None:
        """Grow the forest; with fewer than 20 whole answers it stays with the user input length."""
        whole = [o for o in outcomes if not o.censored]
        self.forest = None
        if len(whole) >= FEWEST_OUTCOMES:
            lengths = np.array([o.generated_tokens for o in whole], np.float64)
            self.forest, _ = grow(self._features([o.prompt for o in whole]), lengths)

    def predict(self, prompts: Sequence[Prompt]) -> list[Prediction]:
        """Median and upper quantile of each prompt's generation length."""
        if self.forest is None or not prompts:
            return UserInputLength().predict(prompts)
        return summarise(self._samples(self.forest, prompts), prompts)

    def remaining(self, prompt: Prompt, generated: int) -> Prediction:
        """Median and upper quantile of the whole length, given that `generated` tokens are out and it goes on."""
        if self.forest is None:
            return UserInputLength().remaining(prompt, generated)
        return given(self._samples(self.forest, [prompt])[0], generated, prompt.limit_tokens)

    def _samples(self, forest: QuantileForest, prompts: Sequence[Prompt]) -> Samples:
        return forest.samples(self._features(prompts))

    def _features(self, prompts: Sequence[Prompt]) -> Matrix:
        columns = [user_input_length(prompts), application_values(prompts, self.encoder)]
        if self.name == "usin":
            columns.append(user_values(prompts, self.encoder))
        return np.concatenate(columns, axis=1)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Its state, to be stored; the encoder by name."""
        described = {"name": np.asarray(self.name), "encoder": np.asarray(self.encoder.name)}
        return described | (self.forest.to_arrays() if self.forest else {})

    @classmethod
    def from_arrays(cls, arrays: dict[str, npt.NDArray[Any]]) -> "SemanticForest":
        """The stored predictor, its encoder loaded by name."""
        forest = QuantileForest.from_arrays(arrays) if "roots" in arrays else None
        return cls(str(arrays["name"]), make_encoder(str(arrays["encoder"])), forest)
