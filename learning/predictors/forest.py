"""`forest`, our own length predictor: a regression and a text ridge for each application, one quantile forest for all.

An application's robust regression splits an answer's length into

    length = predicted(input length) + spread(input length) · z,

so that short and long answers weigh the same in one forest. A ridge predicts z from the text's words and, where that
helps, from the sentence encoder's vector as well. The forest predicts z from the ridge's prediction, the input length
and lexical features. A regression between logarithms, which applications share in part, predicts well while answers are
few. Each group of prompts (see `application_models`) blends ridge, forest and the regression between logarithms, with
weights fitted to left-out answers. A part that does not help gets almost no weight, so that the robust regression alone
predicts applications whose lengths depend on the input length alone. Texts are encoded only if their group needs it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy.optimize import nnls

from learning.estimators.application_models import ApplicationModels, fit_application_models
from learning.estimators.quantile_forest import QuantileForest, train_forest
from learning.estimators.regressions import LogRegression, fit_log_regression
from learning.features.length_predictor import (
    Arrays,
    Outcome,
    Prediction,
    Prompt,
    Samples,
    complete_outcomes,
    group_key,
    input_lengths,
    summarise,
)
from learning.features.prompt_features import FeatureMatrix, lexical_features
from learning.features.text_encoders import Encoder, make_encoder
from learning.features.text_vectors import read_texts
from learning.predictors.cold_start import UserInputLengthPredictor
from scheduling.costs import Floats, Ints
from scheduling.request import COVERAGE

FEWEST_OUTCOMES = 30  # a fit needs this many complete outcomes, and so does a group's blend; see `application_models`
# Equal weights of ridge, forest and regression between logarithms, whose sum is slightly below 1; not tuned
DEFAULT_BLEND = np.array([0.3, 0.3, 0.3])
# The default blend counts as this share of the group's answers. Without it, two parts that predict the same could get
# any weights. Not tuned; when the blend counted as at least thirty answers, the first fit on a real model's answers had
# a tau 0.015 higher and errors 3 % larger.
PRIOR_SHARE = 0.05
# Added to the forest's gap from median to upper quantile (in z), because a gap of 0 cannot be scaled; not tuned.
LEAST_UPPER_GAP = 0.2
LEAST_UPPER_SCALE = 0.05  # keeps the upper quantile above the median; any small positive number works


@dataclass(slots=True)
class FittedForest:
    """What `ForestPredictor.fit` learned."""

    applications: ApplicationModels
    forest: QuantileForest
    logs: LogRegression
    blends: Floats  # (groups, 3): the weights of ridge, forest and `logs` in the predicted centre of the distribution
    upper_scales: Floats  # (groups,): the width of the distribution's upper half relative to the forest's


class ForestPredictor:
    """The predictor `forest`; with fewer than 30 complete answers it predicts the user input length."""

    name = "forest"

    def __init__(self, encoder: Encoder, fitted: FittedForest | None = None) -> None:
        self.encoder = encoder
        self.fitted = fitted

    def fit(self, outcomes: Sequence[Outcome]) -> None:
        """Learn from these outcomes alone."""
        prompts, lengths = complete_outcomes(outcomes)
        self.fitted = None
        if len(prompts) < FEWEST_OUTCOMES:
            return
        texts = read_texts(prompts, self.encoder, np.ones(len(prompts), bool))
        applications, text_scores = fit_application_models(prompts, lengths, texts)
        logs, log_errors = fit_log_regression(*_names_and_inputs(prompts), lengths)
        groups = applications.groups(prompts)
        base, spread = _regress(applications, groups, prompts)
        z = (lengths - base) / spread
        # leaf and share were not tuned: larger leaves smooth the distribution, smaller shares make trees differ more
        forest, out_of_bag = train_forest(_features(prompts, base, spread, text_scores), z, leaf=5, share=0.33)
        log_scores = (_within_limits(np.log(np.maximum(lengths, 1)) - log_errors, prompts) - base) / spread
        blends, upper_scales = _fit_blends(
            z, spread, (text_scores, log_scores), out_of_bag, groups, len(applications.keys)
        )
        self.fitted = FittedForest(applications, forest, logs, blends, upper_scales)

    def predict(self, prompts: Sequence[Prompt]) -> list[Prediction]:
        """Return median and upper quantile of each prompt's generation length."""
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
        log_scores = (_within_limits(fitted.logs.predict(*_names_and_inputs(prompts)), prompts) - base) / spread
        parts = np.stack([text_scores, median, log_scores], axis=1)
        centre = np.sum(fitted.blends[groups] * parts, axis=1)
        around = samples - median[:, None]
        # 0 up to the median, 1 at the upper quantile, and linear in the quantile's level
        above = np.clip(np.linspace(-0.5, 0.5, samples.shape[1]) / (COVERAGE - 0.5), 0, None)
        scaled = fitted.upper_scales[groups][:, None] * (around + LEAST_UPPER_GAP * above)
        around = np.where(above > 0, scaled, around)
        return np.asarray(base[:, None] + spread[:, None] * (centre[:, None] + around), np.float32)

    def to_arrays(self) -> Arrays:
        """Return the state for `learning.store`, with the encoder's name; arrays keep the names of earlier releases."""
        arrays: Arrays = {"encoder": np.asarray(self.encoder.name)}
        if self.fitted:
            arrays |= self.fitted.applications.to_arrays() | self.fitted.forest.to_arrays()
            arrays |= self.fitted.logs.to_arrays()
            arrays |= {"mixes": self.fitted.blends, "stretches": self.fitted.upper_scales}
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        """Return the stored predictor; its encoder is loaded by name."""
        encoder = make_encoder(str(arrays["encoder"]))
        if "roots" not in arrays:
            return cls(encoder)
        applications, forest = ApplicationModels.from_arrays(arrays), QuantileForest.from_arrays(arrays)
        logs, blends = LogRegression.from_arrays(arrays), arrays["mixes"]
        if blends.shape[1] < len(DEFAULT_BLEND):  # stored by releases without the regression between logarithms
            blends = np.column_stack([blends, np.zeros(len(blends))])
        return cls(encoder, FittedForest(applications, forest, logs, blends, arrays["stretches"]))


def _regress(applications: ApplicationModels, groups: Ints, prompts: Sequence[Prompt]) -> tuple[Floats, Floats]:
    """Return the length and the spread that the groups' regressions predict for these prompts."""
    inputs = input_lengths(prompts)
    regression = applications.regression(groups)
    return regression.predict(inputs), regression.spread(inputs)


def _names_and_inputs(prompts: Sequence[Prompt]) -> tuple[list[str], Floats]:
    return [group_key(p.application) for p in prompts], input_lengths(prompts)


def _within_limits(logs: Floats, prompts: Sequence[Prompt]) -> Floats:
    """Return lengths from their logarithms, each bounded by its prompt's limit."""
    limits = np.array([prompt.limit_tokens for prompt in prompts], np.float64)
    return np.asarray(np.exp(np.minimum(logs, np.log(np.maximum(limits, 1)))))


def _features(prompts: Sequence[Prompt], base: Floats, spread: Floats, text_scores: Floats) -> FeatureMatrix:
    predicted = np.column_stack([input_lengths(prompts), base, spread, text_scores])
    return np.concatenate([predicted.astype(np.float32), lexical_features(prompts)], axis=1)


def _fit_blends(
    z: Floats, spread: Floats, left_out: tuple[Floats, Floats], out_of_bag: Samples, groups: Ints, group_count: int
) -> tuple[Floats, Floats]:
    """Return each group's blend of ridge, forest and regression between logarithms, and the scale of its upper half.

    `left_out` holds each answer's z as predicted by a ridge, and by a regression between logarithms, that were fitted
    without the answer. The blend minimises squared errors in tokens and has no negative weight. The scale makes the
    upper quantile cover `COVERAGE` of the group's answers (split conformal prediction on out-of-bag samples).
    """
    text_scores, log_scores = left_out
    median, upper = np.nanquantile(out_of_bag, [0.5, COVERAGE], axis=1)
    blends, upper_scales = np.tile(DEFAULT_BLEND, (group_count, 1)), np.ones(group_count)
    for group in range(group_count):
        rows = np.flatnonzero((groups == group) & ~np.isnan(median))
        if len(rows) < FEWEST_OUTCOMES:
            continue
        of_one = np.stack([text_scores[rows], median[rows], log_scores[rows]], axis=1)
        parts = of_one * spread[rows, None]
        prior = np.sqrt(PRIOR_SHARE * len(rows) * np.mean(parts**2)) * np.eye(parts.shape[1])
        targets = np.concatenate([z[rows] * spread[rows], prior @ DEFAULT_BLEND])
        blends[group], _ = nnls(np.concatenate([parts, prior]), targets)
        centre = of_one @ blends[group]
        needed = z[rows] - 1 / spread[rows]  # one token less still covers a length, as upper quantiles are rounded up
        scales = np.sort((needed - centre) / (upper[rows] - median[rows] + LEAST_UPPER_GAP))
        covering = min(len(rows) - 1, int(np.ceil(COVERAGE * (len(rows) + 1))) - 1)
        upper_scales[group] = max(LEAST_UPPER_SCALE, scales[covering])
    return blends, upper_scales
