"""The paper's forests (Magnus III-B, Table II): RAFT for each task; INST and USIN for all applications together."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Self

import numpy as np

from learning.estimators.quantile_forest import QuantileForest, train_forest
from learning.features.length_predictor import (
    Arrays,
    Outcome,
    Prediction,
    Prompt,
    complete_outcomes,
    group_key,
    summarise,
    summarise_by_mean,
)
from learning.features.prompt_features import FeatureMatrix, application_features, user_features, user_input_length
from learning.features.text_encoders import Encoder, make_encoder
from learning.predictors.cold_start import UserInputLengthPredictor

# A forest is trained on at least this many answers: five leaves of four. Fewer make the distribution coarse, more delay
# learning; not tuned.
FEWEST_OUTCOMES = 20


class SemanticFeaturesPredictor:
    """One forest for all applications: `inst` reads input length and instruction, `usin` also the user's text.

    `usin-mean` predicts the mean, as the paper's forest does, instead of the median.
    """

    def __init__(self, name: str, encoder: Encoder, forest: QuantileForest | None = None) -> None:
        self.name, self.encoder, self.forest = name, encoder, forest

    def fit(self, outcomes: Sequence[Outcome]) -> None:
        """Train the forest; with fewer than 20 complete answers the user input length is predicted."""
        prompts, lengths = complete_outcomes(outcomes)
        self.forest = None
        if len(prompts) >= FEWEST_OUTCOMES:
            self.forest, _ = train_forest(self._features(prompts), lengths)

    def predict(self, prompts: Sequence[Prompt]) -> list[Prediction]:
        """Return median and upper quantile of each prompt's generation length."""
        if self.forest is None or not prompts:
            return UserInputLengthPredictor().predict(prompts)
        samples = self.forest.samples(self._features(prompts))
        return (summarise_by_mean if self.name == "usin-mean" else summarise)(samples, prompts)

    def _features(self, prompts: Sequence[Prompt]) -> FeatureMatrix:
        columns = [user_input_length(prompts), application_features(prompts, self.encoder)]
        if self.name != "inst":
            columns.append(user_features(prompts, self.encoder))
        return np.concatenate(columns, axis=1)

    def to_arrays(self) -> Arrays:
        """Return the state for `learning.store`, with the encoder's name."""
        names = {"name": np.asarray(self.name), "encoder": np.asarray(self.encoder.name)}
        return names | (self.forest.to_arrays() if self.forest else {})

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        """Return the stored predictor; its encoder is loaded by name."""
        forest = QuantileForest.from_arrays(arrays) if "roots" in arrays else None
        return cls(str(arrays["name"]), make_encoder(str(arrays["encoder"])), forest)


class TaskForestsPredictor:
    """A forest on the user input length for each task; a task is an application with an instruction.

    For an unknown task, the predictor predicts the user input length.
    """

    name = "raft"

    def __init__(self) -> None:
        self.forests: dict[str, QuantileForest] = {}

    def fit(self, outcomes: Sequence[Outcome]) -> None:
        """Train a forest for every task with at least 20 complete answers."""
        prompts, lengths = complete_outcomes(outcomes)
        self.forests = {}
        for task, rows in _rows_by_task(prompts).items():
            if len(rows) >= FEWEST_OUTCOMES:
                self.forests[task], _ = train_forest(user_input_length([prompts[row] for row in rows]), lengths[rows])

    def predict(self, prompts: Sequence[Prompt]) -> list[Prediction]:
        """Return median and upper quantile of each prompt's generation length."""
        predicted = UserInputLengthPredictor().predict(prompts)
        for task, rows in _rows_by_task(prompts).items():
            if task in self.forests:
                asked = [prompts[row] for row in rows]
                samples = self.forests[task].samples(user_input_length(asked))
                for row, prediction in zip(rows, summarise(samples, asked), strict=True):
                    predicted[row] = prediction
        return predicted

    def to_arrays(self) -> Arrays:
        """Return the state for `learning.store`."""
        arrays: Arrays = {"tasks": np.array(list(self.forests), str)}
        for task, forest in self.forests.items():
            arrays |= {f"{task}.{name}": values for name, values in forest.to_arrays().items()}
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        """Return the stored predictor."""
        predictor = cls()
        for task in arrays["tasks"].tolist():
            own = {name.partition(".")[2]: values for name, values in arrays.items() if name.startswith(f"{task}.")}
            predictor.forests[task] = QuantileForest.from_arrays(own)
        return predictor


def _rows_by_task(prompts: Sequence[Prompt]) -> dict[str, list[int]]:
    rows = defaultdict(list)
    for row, prompt in enumerate(prompts):
        rows[group_key(prompt.application, prompt.instruction)].append(row)
    return rows
