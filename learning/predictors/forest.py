"""`forest`, our own length predictor: of each application a line and a ridge on words, over all a quantile forest.

An answer's length is read as  line(input length) + spread(input length) · z,  so that short and long answers weigh
alike in one forest. A ridge on the text's words predicts the order of z, the forest corrects it from what the text
looks like, and each group mixes the two as its left-out answers say: what does not help gets no weight, so an
application whose line says it all keeps its line.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls
from scipy.sparse import csr_array, hstack

from learning.estimators.application_models import Applications, fit_applications
from learning.estimators.forest_training import grow
from learning.estimators.length_distribution import Samples, given, summarise
from learning.estimators.quantile_forest import QuantileForest
from learning.features.compressed_features import Matrix
from learning.features.hashed_text import hashed
from learning.features.lexical_features import lexical
from learning.features.text_encoders import HASHING, Encoder, make_encoder
from learning.predictors.length_predictor import Outcome, Prediction, Prompt
from learning.predictors.uilo import UserInputLength
from scheduling.request import COVERAGE

Numbers = npt.NDArray[np.float64]
Groups = npt.NDArray[np.int64]

FEWEST_OUTCOMES = 30
EVEN = np.array([0.4, 0.4])  # the mix of words and forest before anything is known
LEAST_REACH = 0.2  # added to the forest's own reach from median to upper quantile, which can be nothing, in z
FAITH = 0.05  # how much the even mix counts, as a share of the answers


@dataclass(slots=True)
class FittedForest:
    """All that was learned."""

    applications: Applications
    forest: QuantileForest
    mixes: Numbers  # (groups, 2): shares of words and forest in the centre
    stretches: Numbers  # (groups,): how much wider than the forest's the upper half is


class ForestPredictor:
    """The predictor; with fewer than 30 whole answers it stays with the user input length."""

    name = "forest"

    def __init__(self, encoder: Encoder, fitted: FittedForest | None = None) -> None:
        self.encoder = encoder
        self.fitted = fitted

    def fit(self, outcomes: Sequence[Outcome]) -> None:
        """Learn from these outcomes alone."""
        whole = [o for o in outcomes if not o.censored]
        self.fitted = None
        if len(whole) < FEWEST_OUTCOMES:
            return
        prompts = [o.prompt for o in whole]
        lengths = np.array([o.generated_tokens for o in whole], np.float64)
        applications, words = fit_applications(prompts, lengths, self._texts(prompts))
        groups = applications.groups(prompts)
        base, spread = _line(applications, groups, prompts)
        z = (lengths - base) / spread
        forest, samples = grow(_features(prompts, base, spread, words), z, leaf=5, share=0.33)
        mixes, stretches = _mix(z, spread, words, samples, groups, len(applications.keys))
        self.fitted = FittedForest(applications, forest, mixes, stretches)

    def predict(self, prompts: Sequence[Prompt]) -> list[Prediction]:
        """Median and upper quantile of each prompt's generation length."""
        if self.fitted is None or not prompts:
            return UserInputLength().predict(prompts)
        return summarise(self._samples(self.fitted, prompts), prompts)

    def remaining(self, prompt: Prompt, generated: int) -> Prediction:
        """Median and upper quantile of the whole length, given that `generated` tokens are out and it goes on."""
        if self.fitted is None:
            return UserInputLength().remaining(prompt, generated)
        return given(self._samples(self.fitted, [prompt])[0], generated, prompt.limit_tokens)

    def _samples(self, fitted: FittedForest, prompts: Sequence[Prompt]) -> Samples:
        groups = fitted.applications.groups(prompts)
        base, spread = _line(fitted.applications, groups, prompts)
        words = fitted.applications.words(groups, self._texts(prompts))
        samples = fitted.forest.samples(_features(prompts, base, spread, words))
        median = np.median(samples, axis=1)
        centre = fitted.mixes[groups, 0] * words + fitted.mixes[groups, 1] * median
        around = samples - median[:, None]
        up = np.clip(np.linspace(-0.5, 0.5, samples.shape[1]) / (COVERAGE - 0.5), 0, None)  # 1 at the upper quantile
        wider = fitted.stretches[groups][:, None] * (around + LEAST_REACH * up)
        around = np.where(up > 0, wider, around)
        return np.asarray(base[:, None] + spread[:, None] * (centre[:, None] + around), np.float32)

    def _texts(self, prompts: Sequence[Prompt]) -> csr_array:
        """Words, and what a sentence encoder says of them if there is one."""
        inputs = [p.input for p in prompts]
        if self.encoder.name == HASHING:
            return hashed(inputs)
        return csr_array(hstack([hashed(inputs), csr_array(self.encoder.encode(inputs))]))

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Its state, to be stored; the encoder by name."""
        arrays: dict[str, npt.NDArray[Any]] = {"encoder": np.asarray(self.encoder.name)}
        if self.fitted:
            arrays |= self.fitted.applications.to_arrays() | self.fitted.forest.to_arrays()
            arrays |= {"mixes": self.fitted.mixes, "stretches": self.fitted.stretches}
        return arrays

    @classmethod
    def from_arrays(cls, arrays: dict[str, npt.NDArray[Any]]) -> "ForestPredictor":
        """The stored predictor, its encoder loaded by name."""
        encoder = make_encoder(str(arrays["encoder"]))
        if "roots" not in arrays:
            return cls(encoder)
        applications, forest = Applications.from_arrays(arrays), QuantileForest.from_arrays(arrays)
        return cls(encoder, FittedForest(applications, forest, arrays["mixes"], arrays["stretches"]))


def _line(applications: Applications, groups: Groups, prompts: Sequence[Prompt]) -> tuple[Numbers, Numbers]:
    inputs = np.array([p.input_tokens for p in prompts], np.float64)
    line = applications.line(groups)
    return line.at(inputs), line.spread(inputs)


def _features(prompts: Sequence[Prompt], base: Numbers, spread: Numbers, words: Numbers) -> Matrix:
    known = np.column_stack([[p.input_tokens for p in prompts], base, spread, words])
    return np.concatenate([known.astype(np.float32), lexical(prompts)], axis=1)


def _mix(
    z: Numbers, spread: Numbers, words: Numbers, samples: Samples, groups: Groups, many: int
) -> tuple[Numbers, Numbers]:
    """Each group's mix of words and forest, by least squares in tokens, and the stretch that gives it `COVERAGE`."""
    median, upper = np.nanquantile(samples, [0.5, COVERAGE], axis=1)
    mixes, stretches = np.tile(EVEN, (many, 1)), np.ones(many)
    for group in range(many):
        rows = np.flatnonzero((groups == group) & ~np.isnan(median))
        if len(rows) < FEWEST_OUTCOMES:
            continue
        parts = np.stack([words[rows], median[rows]], axis=1) * spread[rows, None]
        faith = np.sqrt(FAITH * len(rows) * np.mean(parts**2)) * np.eye(2)
        mixes[group], _ = nnls(np.concatenate([parts, faith]), np.concatenate([z[rows] * spread[rows], faith @ EVEN]))
        centre = mixes[group, 0] * words[rows] + mixes[group, 1] * median[rows]
        needed = z[rows] - 1 / spread[rows]  # a length is covered from one token below: upper quantiles are rounded up
        reach = np.sort((needed - centre) / (upper[rows] - median[rows] + LEAST_REACH))
        place = min(len(rows) - 1, int(np.ceil(COVERAGE * (len(rows) + 1))) - 1)
        stretches[group] = max(0.05, reach[place])
    return mixes, stretches
