"""The models of each application by itself: a regression on the user input length, and a ridge on the text.

Applications are split into groups: each application with enough answers, and each of its instructions with enough
answers if it has several. All other prompts belong to group 0, whose models are fitted to all answers.

A group's regression says  length = predicted + spread · z.  Its ridge predicts z from the text.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from learning.estimators.ridge_regression import fit_ridge
from learning.estimators.robust_regression import RobustRegression, fit_robust_regression
from learning.features.hashed_text import rarity_weights
from learning.predictors.length_predictor import Prompt
from scheduling.costs import Floats, Ints

FEWEST_ANSWERS = 30  # of a group: fewer make its two models depend on single answers, more delay them; it was not tuned
MOST_RIDGE_ROWS = 1024  # of a group: the ridge's time grows with the cube of its rows
ALL_ANSWERS = ""  # the key of group 0


def group_key(*parts: str) -> str:
    """The key of an application, or of an application and an instruction.

    Only a digest is kept, because instructions may be long and private.
    """
    return hashlib.sha256("\x1f".join(parts).encode("utf-8", "replace")).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class ApplicationModels:
    """The models of all groups, one row a group."""

    keys: npt.NDArray[np.str_]  # (groups,)
    regressions: Floats  # (groups, the fields of RobustRegression)
    text_weights: npt.NDArray[np.float32]  # (groups, dimension)
    text_intercepts: npt.NDArray[np.float32]  # (groups,)

    def groups(self, prompts: Sequence[Prompt]) -> Ints:
        """Each prompt's group."""
        return _groups([str(key) for key in self.keys], prompts)

    def regression(self, groups: Ints) -> RobustRegression:
        """The regressions of these groups as one whose fields are arrays."""
        return RobustRegression(*self.regressions[groups].T)

    def text_scores(self, groups: Ints, texts: csr_array) -> Floats:
        """The z that each text's words predict, (texts,)."""
        scores = np.zeros(len(groups))
        for group in np.unique(groups):
            rows = np.flatnonzero(groups == group)
            scores[rows] = texts[rows] @ self.text_weights[group] + self.text_intercepts[group]
        return _undo_signed_log(scores)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Their state, to be stored; weights in half precision. The names are those of models stored earlier."""
        return {
            "keys": self.keys,
            "lines": self.regressions,
            "weights": self.text_weights.astype(np.float16),
            "offsets": self.text_intercepts,
        }

    @classmethod
    def from_arrays(cls, arrays: dict[str, npt.NDArray[Any]]) -> "ApplicationModels":
        """The stored models."""
        return cls(arrays["keys"], arrays["lines"], arrays["weights"].astype(np.float32), arrays["offsets"])


def _groups(keys: Sequence[str], prompts: Sequence[Prompt]) -> Ints:
    rows = {key: row for row, key in enumerate(keys)}
    fallback = rows[ALL_ANSWERS]
    return np.array(
        [
            rows.get(group_key(p.application, p.instruction), rows.get(group_key(p.application), fallback))
            for p in prompts
        ],
        np.int64,
    )


def fit_application_models(
    prompts: Sequence[Prompt], lengths: Floats, texts: csr_array
) -> tuple[ApplicationModels, Floats]:
    """The models of these answers' groups, and the leave-one-out text score of each answer, (answers,)."""
    of_instruction = np.array([group_key(p.application, p.instruction) for p in prompts])
    of_application = np.array([group_key(p.application) for p in prompts])
    keys = [ALL_ANSWERS]
    for application in np.unique(of_application):
        instructions = Counter(of_instruction[of_application == application].tolist())
        if instructions.total() >= FEWEST_ANSWERS:
            keys.append(str(application))
            keys += sorted(k for k, count in instructions.items() if FEWEST_ANSWERS <= count < instructions.total())
    groups = _groups(keys, prompts)
    inputs = np.array([p.input_tokens for p in prompts], np.float64)
    rng = np.random.default_rng(0)
    regressions, weights, intercepts = [], [], []
    scores = np.zeros(len(prompts))
    for group, key in enumerate(keys):
        member = (of_instruction == key) | (of_application == key) | (key == ALL_ANSWERS)
        regression = fit_robust_regression(inputs[member], lengths[member])
        some = rng.permutation(np.flatnonzero(member))[:MOST_RIDGE_ROWS]
        z = (lengths[some] - regression.predict(inputs[some])) / regression.spread(inputs[some])
        weight, intercept, left_out = _fit_text_ridge(texts[some], _signed_log(z))
        regressions.append([getattr(regression, f.name) for f in fields(RobustRegression)])
        weights.append(weight.astype(np.float32))
        intercepts.append(np.float32(intercept))
        own = np.flatnonzero(groups == group)
        scores[own] = texts[own] @ weight + intercept
        in_ridge = groups[some] == group
        scores[some[in_ridge]] = left_out[in_ridge]
    models = ApplicationModels(np.array(keys), np.array(regressions), np.array(weights), np.array(intercepts))
    return models, _undo_signed_log(scores)


def _fit_text_ridge(texts: csr_array, targets: Floats) -> tuple[Floats, float, Floats]:
    """`fit_ridge` with all words weighing the same or rare ones more, whichever has the smaller leave-one-out error.

    In code, rare names say much about the length; in questions to a chat model, common words say more.
    """
    fits = [
        (columns, *fit_ridge(csr_array(texts * columns), targets))
        for columns in (np.ones(texts.shape[1]), rarity_weights(texts))
    ]
    columns, weights, intercept, left_out = min(fits, key=lambda fit: float(np.sum((fit[3] - targets) ** 2)))
    return weights * columns, intercept, left_out


def _signed_log(z: Floats) -> Floats:
    """z on a logarithmic scale, so that the order of common lengths counts for more than the size of rare ones."""
    return np.asarray(np.sign(z) * np.log1p(np.abs(z)))


def _undo_signed_log(scores: Floats) -> Floats:
    """The inverse of `_signed_log`."""
    return np.asarray(np.sign(scores) * np.expm1(np.abs(scores)))
