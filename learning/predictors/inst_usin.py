"""INST and USIN (Magnus III-B): a quantile forest on the user input length, the instruction and the user's text."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from learning.estimators.forest_training import train_forest
from learning.estimators.length_distribution import summarise
from learning.estimators.quantile_forest import QuantileForest
from learning.features.compressed_features import (
    FeatureMatrix,
    application_features,
    user_features,
    user_input_length,
)
from learning.features.text_encoders import Encoder, make_encoder
from learning.predictors.length_predictor import Outcome, Prediction, Prompt
from learning.predictors.uilo import UserInputLengthPredictor

FEWEST_OUTCOMES = 20  # five leaves of four answers: fewer make the distribution coarse, more delay learning; not tuned


class SemanticFeaturesPredictor:
    """One forest for all applications; `inst` sees length and instruction, `usin` the user's text as well."""

    def __init__(self, name: str, encoder: Encoder, forest: QuantileForest | None = None) -> None:
        self.name = name
        self.encoder = encoder
        self.forest = forest

    def fit(self, outcomes: Sequence[Outcome]) -> None:
        """Train the forest; with fewer than 20 complete answers the user input length is predicted."""
        complete = [o for o in outcomes if not o.censored]
        self.forest = None
        if len(complete) >= FEWEST_OUTCOMES:
            lengths = np.array([o.generated_tokens for o in complete], np.float64)
            self.forest, _ = train_forest(self._features([o.prompt for o in complete]), lengths)

    def predict(self, prompts: Sequence[Prompt]) -> list[Prediction]:
        """Median and upper quantile of each prompt's generation length."""
        if self.forest is None or not prompts:
            return UserInputLengthPredictor().predict(prompts)
        return summarise(self.forest.samples(self._features(prompts)), prompts)

    def _features(self, prompts: Sequence[Prompt]) -> FeatureMatrix:
        columns = [user_input_length(prompts), application_features(prompts, self.encoder)]
        if self.name == "usin":
            columns.append(user_features(prompts, self.encoder))
        return np.concatenate(columns, axis=1)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Its state, to be stored; the encoder by name."""
        names = {"name": np.asarray(self.name), "encoder": np.asarray(self.encoder.name)}
        return names | (self.forest.to_arrays() if self.forest else {})

    @classmethod
    def from_arrays(cls, arrays: dict[str, npt.NDArray[Any]]) -> "SemanticFeaturesPredictor":
        """The stored predictor, its encoder loaded by name."""
        forest = QuantileForest.from_arrays(arrays) if "roots" in arrays else None
        return cls(str(arrays["name"]), make_encoder(str(arrays["encoder"])), forest)
