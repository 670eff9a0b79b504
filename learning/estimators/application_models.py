"""Each application's own models: a regression on the user input length, and a ridge on the text.

Prompts are split into groups: one for each application with enough answers, and one for each of its instructions with
enough answers if it has several. All other prompts belong to group 0, whose models are fitted to all answers.

A group's regression says  length = predicted + spread · z.  Its ridge predicts z from the text's hashed words and,
where that helps, from the sentence encoder's vector as well.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from learning.estimators.regressions import RobustRegression, fit_ridge, fit_robust_regression
from learning.features.length_predictor import Arrays, Prompt, group_key, input_lengths
from learning.features.text_vectors import DIMENSION, TextVectors, rarity_weights
from scheduling.costs import Floats, Ints

# A group has at least this many answers: fewer make its models depend on single answers, more delay them; not tuned.
FEWEST_ANSWERS = 30
MOST_RIDGE_ROWS = 1024  # a group's ridge is fitted to at most this many answers: its time grows with their cube
ALL_ANSWERS = ""  # the key of group 0
# A group uses the sentence encoder's vectors if they lower its ridge's leave-one-out error by this share. A smaller
# gain may be chance, and encoding a text costs several times as much as the rest of its prediction. Not tuned.
LEAST_GAIN = 0.01


@dataclass(frozen=True, slots=True)
class ApplicationModels:
    """The models of all groups; each array has a row for each group."""

    keys: npt.NDArray[np.str_]  # (groups,)
    regressions: Floats  # (groups, the fields of RobustRegression)
    text_weights: npt.NDArray[np.float32]  # (groups, hashed dimension + the encoder's)
    text_intercepts: npt.NDArray[np.float32]  # (groups,)

    def groups(self, prompts: Sequence[Prompt]) -> Ints:
        """Return each prompt's group."""
        return _groups([str(key) for key in self.keys], prompts)

    def regression(self, groups: Ints) -> RobustRegression:
        """Return the regressions of these groups as one regression whose fields are arrays."""
        return RobustRegression(*self.regressions[groups].T)

    def read_encoded(self, groups: Ints) -> npt.NDArray[np.bool_]:
        """Return whether each of these groups reads the sentence encoder's vectors."""
        reads: npt.NDArray[np.bool_] = np.asarray(self.text_weights[:, DIMENSION:].any(axis=1))
        return reads[groups]

    def text_scores(self, groups: Ints, texts: TextVectors) -> Floats:
        """Return the z that the ridge predicts for each text, (texts,)."""
        rows = np.repeat(np.arange(len(groups)), np.diff(texts.hashed.indptr))
        products = texts.hashed.data * self.text_weights[groups[rows], texts.hashed.indices]
        scores = np.bincount(rows, products, minlength=len(groups)) + self.text_intercepts[groups]
        encoded = np.einsum("ij,ij->i", texts.encoded, self.text_weights[groups, DIMENSION:])
        return _undo_signed_log(scores + encoded)

    def to_arrays(self) -> Arrays:
        """Return the state for `learning.store`, with weights in half precision and the names of earlier releases."""
        return {
            "keys": self.keys,
            "lines": self.regressions,
            "weights": self.text_weights.astype(np.float16),
            "offsets": self.text_intercepts,
        }

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        """Return the stored models."""
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
    prompts: Sequence[Prompt], lengths: Floats, texts: TextVectors
) -> tuple[ApplicationModels, Floats]:
    """Return the models of these answers' groups, and the leave-one-out text score of each answer, (answers,)."""
    of_instruction = np.array([group_key(p.application, p.instruction) for p in prompts])
    of_application = np.array([group_key(p.application) for p in prompts])
    keys = [ALL_ANSWERS]
    for application in np.unique(of_application):
        instructions = Counter(of_instruction[of_application == application].tolist())
        if instructions.total() >= FEWEST_ANSWERS:
            keys.append(str(application))
            keys += sorted(k for k, count in instructions.items() if FEWEST_ANSWERS <= count < instructions.total())
    groups = _groups(keys, prompts)
    inputs = input_lengths(prompts)
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
        scores[own] = _weigh(texts[own], weight) + intercept
        in_ridge = groups[some] == group
        scores[some[in_ridge]] = left_out[in_ridge]
    models = ApplicationModels(np.array(keys), np.array(regressions), np.array(weights), np.array(intercepts))
    return models, _undo_signed_log(scores)


def _fit_text_ridge(texts: TextVectors, targets: Floats) -> tuple[Floats, float, Floats]:
    """Return weights, intercept and leave-one-out predictions of the ridge with the smallest leave-one-out error.

    It tries equal weights for all words, and larger weights for rare words: rare names predict the length of code,
    common words that of chat answers. It also reads the encoder's vectors if they lower the error by `LEAST_GAIN`.
    """
    columns_to_try = (np.ones(texts.hashed.shape[1]), rarity_weights(texts.hashed))
    fits = [_TextRidge.fit(texts, columns, False, targets) for columns in columns_to_try]
    best = min(fits, key=lambda fit: fit.squared_error(targets))
    if texts.encoded.shape[1]:
        with_encoded = [_TextRidge.fit(texts, columns, True, targets) for columns in columns_to_try]
        better = min(with_encoded, key=lambda fit: fit.squared_error(targets))
        if better.squared_error(targets) < (1 - LEAST_GAIN) * best.squared_error(targets):
            best = better
    weights = best.weights(texts)
    return weights, float(np.mean(targets - _weigh(texts, weights))), best.left_out


@dataclass(frozen=True, slots=True)
class _TextRidge:
    """A ridge on scaled columns of hashed words, and on the encoder's vectors if `reads_encoded`."""

    columns: Floats
    reads_encoded: bool
    dual: Floats
    left_out: Floats

    @classmethod
    def fit(cls, texts: TextVectors, columns: Floats, reads_encoded: bool, targets: Floats) -> "_TextRidge":
        scaled = csr_array(texts.hashed * columns)
        products = (scaled @ scaled.T).toarray().astype(np.float64)
        if reads_encoded:
            products += texts.encoded @ texts.encoded.T
        return cls(columns, reads_encoded, *fit_ridge(products, targets))

    def squared_error(self, targets: Floats) -> float:
        return float(np.sum((self.left_out - targets) ** 2))

    def weights(self, texts: TextVectors) -> Floats:
        of_encoded = texts.encoded.T @ self.dual * self.reads_encoded
        return np.concatenate([self.columns**2 * (texts.hashed.T @ self.dual), of_encoded])


def _weigh(texts: TextVectors, weights: Floats | npt.NDArray[np.float32]) -> Floats:
    """Return the product of each text with these weights, (texts,)."""
    return np.asarray(texts.hashed @ weights[:DIMENSION] + texts.encoded @ weights[DIMENSION:], np.float64)


def _signed_log(z: Floats) -> Floats:
    """Return z on a logarithmic scale, so that a few very long answers do not dominate the squared errors."""
    return np.asarray(np.sign(z) * np.log1p(np.abs(z)))


def _undo_signed_log(scores: Floats) -> Floats:
    """Return the inverse of `_signed_log`."""
    return np.asarray(np.sign(scores) * np.expm1(np.abs(scores)))
