"""RAFT (Magnus Table II): a quantile forest for each task, on the user input length alone."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from learning.estimators.forest_training import train_forest
from learning.estimators.length_distribution import summarise
from learning.estimators.quantile_forest import QuantileForest
from learning.features.compressed_features import user_input_length
from learning.features.group_key import group_key
from learning.predictors.length_predictor import Outcome, Prediction, Prompt
from learning.predictors.uilo import UserInputLengthPredictor

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
