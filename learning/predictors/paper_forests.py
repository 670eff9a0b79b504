"""INST and USIN (Magnus III-B): a quantile forest on the user input length, the instruction and the user's text."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from learning.estimators.quantile_forest import QuantileForest, train_forest
from learning.features.prompt_features import (
    FeatureMatrix,
    application_features,
    user_features,
    user_input_length,
)
from learning.features.text_encoders import Encoder, make_encoder
from learning.predictors.cold_start import UserInputLengthPredictor
from learning.predictors.length_predictor import Outcome, Prediction, Prompt, group_key, summarise

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


FEWEST_OUTCOMES = 20  # of a task: five leaves of four answers; not tuned


class TaskForestsPredictor:
    """A task is an application with an instruction; for an unknown task the user input length is predicted."""

    name = "raft"

    def __init__(self) -> None:
        self.forests: dict[str, QuantileForest] = {}

    def fit(self, outcomes: Sequence[Outcome]) -> None:
        """Train a forest for every task with at least 20 complete answers."""
        by_task = defaultdict(list)
        for outcome in outcomes:
            if not outcome.censored:
                by_task[_task(outcome.prompt)].append(outcome)
        self.forests = {}
        for task, answers in by_task.items():
            if len(answers) >= FEWEST_OUTCOMES:
                lengths = np.array([o.generated_tokens for o in answers], np.float64)
                self.forests[task], _ = train_forest(user_input_length([o.prompt for o in answers]), lengths)

    def predict(self, prompts: Sequence[Prompt]) -> list[Prediction]:
        """Median and upper quantile of each prompt's generation length."""
        predicted = UserInputLengthPredictor().predict(prompts)
        rows = defaultdict(list)
        for row, prompt in enumerate(prompts):
            rows[_task(prompt)].append(row)
        for task in rows.keys() & self.forests.keys():
            of_task = [prompts[row] for row in rows[task]]
            samples = self.forests[task].samples(user_input_length(of_task))
            for row, prediction in zip(rows[task], summarise(samples, of_task), strict=True):
                predicted[row] = prediction
        return predicted

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Its state, to be stored."""
        arrays: dict[str, npt.NDArray[Any]] = {"tasks": np.array(list(self.forests), str)}
        for task, forest in self.forests.items():
            arrays |= {f"{task}.{name}": values for name, values in forest.to_arrays().items()}
        return arrays

    @classmethod
    def from_arrays(cls, arrays: dict[str, npt.NDArray[Any]]) -> "TaskForestsPredictor":
        """The stored predictor."""
        predictor = cls()
        for task in arrays["tasks"].tolist():
            own = {name.partition(".")[2]: values for name, values in arrays.items() if name.startswith(f"{task}.")}
            predictor.forests[task] = QuantileForest.from_arrays(own)
        return predictor


def _task(prompt: Prompt) -> str:
    return group_key(prompt.application, prompt.instruction)
