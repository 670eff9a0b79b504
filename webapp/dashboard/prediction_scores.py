"""Scores of predictions by application, from the newest answers."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import median

import numpy as np

from models.operations.application_figures import PredictedAnswer
from scheduling.rank_correlation import kendall_tau

FEWEST_FOR_TAU = 10  # with fewer answers tau is chance


@dataclass(frozen=True, slots=True)
class PredictionScore:
    """Of one application's answers: error in tokens, order, share below the upper quantile, error of ETAs."""

    application: str
    answers: int
    mean_predicted: float
    mean_tokens: float
    rmse: float
    tau: float | None
    coverage: float
    eta_error_s: float | None  # median
    eta_kept: float | None  # share


def scores_by_application(answers: Iterable[PredictedAnswer]) -> list[PredictionScore]:
    """The scores, the application with the most answers first."""
    groups = defaultdict(list)
    for one in answers:
        groups[one.application].append(one)
    return sorted((_score(name, group) for name, group in groups.items()), key=lambda s: (-s.answers, s.application))


def _score(application: str, answers: Sequence[PredictedAnswer]) -> PredictionScore:
    predicted = np.array([one.predicted_tokens for one in answers], np.float64)
    tokens = np.array([one.tokens for one in answers], np.float64)
    promised = [one.eta_error_s for one in answers if one.eta_error_s is not None]
    kept = [one.eta_kept for one in answers if one.eta_kept is not None]
    return PredictionScore(
        application,
        len(answers),
        float(predicted.mean()),
        float(tokens.mean()),
        sqrt(float(((predicted - tokens) ** 2).mean())),
        kendall_tau(predicted, tokens) if len(answers) >= FEWEST_FOR_TAU else None,
        sum(one.tokens <= one.upper_tokens for one in answers) / len(answers),
        median(promised) if promised else None,
        sum(kept) / len(kept) if kept else None,
    )
