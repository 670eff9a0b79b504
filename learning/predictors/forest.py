"""`forest`, our own length predictor: a regression and a text ridge for each application, one quantile forest for all.

An application's robust regression splits an answer's length into

    length = predicted(input length) + spread(input length) · z,

so that short and long answers weigh the same in one forest. A ridge predicts z from the text's words and, where that
helps, from the sentence encoder's vector beside them. The forest predicts z from that, the input length and how the
text looks. Each group of prompts (see `application_models`) blends ridge and forest with weights fitted to left-out
answers. A part that does not help gets almost no weight, so an application whose lengths depend on the input length
alone is predicted by its regression. Texts whose group does not read the encoder's vector are not encoded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from learning.estimators.application_models import ApplicationModels, fit_application_models
from learning.estimators.forest_training import train_forest
from learning.estimators.length_distribution import Samples, summarise
from learning.estimators.quantile_forest import QuantileForest
from learning.features.compressed_features import FeatureMatrix
from learning.features.lexical_features import lexical_features
from learning.features.text_encoders import Encoder, make_encoder
from learning.features.text_vectors import read_texts
from learning.predictors.length_predictor import Outcome, Prediction, Prompt
from learning.predictors.uilo import UserInputLengthPredictor
from scheduling.costs import Floats, Ints
from scheduling.request import COVERAGE

FEWEST_OUTCOMES = 30  # to fit anything, and to fit a group's blend: as many as make a group of `application_models`
DEFAULT_BLEND = np.array([0.4, 0.4])  # ridge and forest in equal parts, drawn a little to the regression; not tuned
# The default blend counts as much as this share of the group's answers. Without it, two parts that predict the same
# could get any weights; it was not tuned.
PRIOR_SHARE = 0.05
# In z, added to the forest's gap from median to upper quantile, because scaling leaves a gap of 0 at 0; not tuned.
LEAST_UPPER_GAP = 0.2
LEAST_UPPER_SCALE = 0.05  # keeps the upper quantile above the median; any small positive number does


@dataclass(slots=True)
class FittedForest:
    """Everything that `fit` learned."""

    applications: ApplicationModels
    forest: QuantileForest
    blends: Floats  # (groups, 2): the weights of ridge and forest in the centre of the distribution
    upper_scales: Floats  # (groups,): how many times wider than the forest's the upper half of the distribution is


class ForestPredictor:
    """The predictor; with fewer than 30 complete answers it predicts the user input length."""

    name = "forest"

    def __init__(self, encoder: Encoder, fitted: FittedForest | None = None) -> None:
        self.encoder = encoder
        self.fitted = fitted

    def fit(self, outcomes: Sequence[Outcome]) -> None:
        """Learn from these outcomes alone."""
        complete = [o for o in outcomes if not o.censored]
        self.fitted = None
        if len(complete) < FEWEST_OUTCOMES:
            return
        prompts = [o.prompt for o in complete]
        lengths = np.array([o.generated_tokens for o in complete], np.float64)
        texts = read_texts(prompts, self.encoder, np.ones(len(prompts), bool))
        applications, text_scores = fit_application_models(prompts, lengths, texts)
        groups = applications.groups(prompts)
        base, spread = _regress(applications, groups, prompts)
        z = (lengths - base) / spread
        # leaf and share were not tuned: larger leaves smooth the distribution, smaller shares make trees differ more
        forest, out_of_bag = train_forest(_features(prompts, base, spread, text_scores), z, leaf=5, share=0.33)
        blends, upper_scales = _fit_blends(z, spread, text_scores, out_of_bag, groups, len(applications.keys))
        self.fitted = FittedForest(applications, forest, blends, upper_scales)

    def predict(self, prompts: Sequence[Prompt]) -> list[Prediction]:
        """Median and upper quantile of each prompt's generation length."""
        if self.fitted is None or not prompts:
            return UserInputLengthPredictor().predict(prompts)
        return summarise(self._samples(self.fitted, prompts), prompts)

    def _samples(self, fitted: FittedForest, prompts: Sequence[Prompt]) -> Samples:
        groups = fitted.applications.groups(prompts)
        base, spread = _regress(fitted.applications, groups, prompts)
        texts = read_texts(prompts, self.encoder, fitted.applications.read_encoded(groups))
        text_scores = fitted.applications.text_scores(groups, texts)
        samples = fitted.forest.samples(_features(prompts, base, spread, text_scores))
        median = np.median(samples, axis=1)
        centre = fitted.blends[groups, 0] * text_scores + fitted.blends[groups, 1] * median
        around = samples - median[:, None]
        # 0 up to the median, 1 at the upper quantile, and linear in the quantile's level
        above = np.clip(np.linspace(-0.5, 0.5, samples.shape[1]) / (COVERAGE - 0.5), 0, None)
        scaled = fitted.upper_scales[groups][:, None] * (around + LEAST_UPPER_GAP * above)
        around = np.where(above > 0, scaled, around)
        return np.asarray(base[:, None] + spread[:, None] * (centre[:, None] + around), np.float32)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Its state, to be stored; the encoder by name. The arrays' names are those of models stored earlier."""
        arrays: dict[str, npt.NDArray[Any]] = {"encoder": np.asarray(self.encoder.name)}
        if self.fitted:
            arrays |= self.fitted.applications.to_arrays() | self.fitted.forest.to_arrays()
            arrays |= {"mixes": self.fitted.blends, "stretches": self.fitted.upper_scales}
        return arrays

    @classmethod
    def from_arrays(cls, arrays: dict[str, npt.NDArray[Any]]) -> "ForestPredictor":
        """The stored predictor, its encoder loaded by name."""
        encoder = make_encoder(str(arrays["encoder"]))
        if "roots" not in arrays:
            return cls(encoder)
        applications, forest = ApplicationModels.from_arrays(arrays), QuantileForest.from_arrays(arrays)
        return cls(encoder, FittedForest(applications, forest, arrays["mixes"], arrays["stretches"]))


def _regress(applications: ApplicationModels, groups: Ints, prompts: Sequence[Prompt]) -> tuple[Floats, Floats]:
    """Length and spread that the groups' regressions predict for these prompts."""
    inputs = np.array([p.input_tokens for p in prompts], np.float64)
    regression = applications.regression(groups)
    return regression.predict(inputs), regression.spread(inputs)


def _features(prompts: Sequence[Prompt], base: Floats, spread: Floats, text_scores: Floats) -> FeatureMatrix:
    predicted = np.column_stack([[p.input_tokens for p in prompts], base, spread, text_scores])
    return np.concatenate([predicted.astype(np.float32), lexical_features(prompts)], axis=1)


def _fit_blends(
    z: Floats, spread: Floats, text_scores: Floats, out_of_bag: Samples, groups: Ints, group_count: int
) -> tuple[Floats, Floats]:
    """Each group's blend of ridge and forest, and the scale of its upper half.

    The blend minimises squared errors in tokens, with no negative weight. The scale makes the upper quantile cover
    `COVERAGE` of the group's answers (split conformal prediction on out-of-bag samples).
    """
    median, upper = np.nanquantile(out_of_bag, [0.5, COVERAGE], axis=1)
    blends, upper_scales = np.tile(DEFAULT_BLEND, (group_count, 1)), np.ones(group_count)
    for group in range(group_count):
        rows = np.flatnonzero((groups == group) & ~np.isnan(median))
        if len(rows) < FEWEST_OUTCOMES:
            continue
        parts = np.stack([text_scores[rows], median[rows]], axis=1) * spread[rows, None]
        prior = np.sqrt(PRIOR_SHARE * len(rows) * np.mean(parts**2)) * np.eye(2)
        targets = np.concatenate([z[rows] * spread[rows], prior @ DEFAULT_BLEND])
        blends[group], _ = nnls(np.concatenate([parts, prior]), targets)
        centre = blends[group, 0] * text_scores[rows] + blends[group, 1] * median[rows]
        needed = z[rows] - 1 / spread[rows]  # a length is covered from one token below: upper quantiles are rounded up
        scales = np.sort((needed - centre) / (upper[rows] - median[rows] + LEAST_UPPER_GAP))
        covering = min(len(rows) - 1, int(np.ceil(COVERAGE * (len(rows) + 1))) - 1)
        upper_scales[group] = max(LEAST_UPPER_SCALE, scales[covering])
    return blends, upper_scales
