"""Measures of predictions: errors (RMSE, MAE, Acc-50, Acc-100), ranks (Kendall's tau, pairs) and coverage."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from learning.features.length_predictor import Outcome, Prediction
from scheduling.rank_correlation import kendall_tau

PAIRS = 200_000  # number of pairs of answers that are drawn; a share of them errs by about a tenth of a percent


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of a predictor on answered requests; shares are within 0..1, errors in tokens."""

    n: int
    rmse: float
    mae: float
    acc_50: float  # share with an error of at most 50 tokens (Sequence Scheduling, Table 3)
    acc_100: float
    tau: float  # Kendall's tau-b; 0 where either side is constant
    pair_accuracy: float  # share of pairs of unequal answers predicted in their order; a predicted tie counts half
    coverage: float  # share of answers that ended within the upper quantile

    def as_dict(self) -> dict[str, float]:
        """Return the scores for JSON, rounded to four digits."""
        return {name: round(float(value), 4) for name, value in asdict(self).items()}


def score(predictions: Sequence[Prediction], lengths: Sequence[int]) -> Scores:
    """Return the scores of at least one prediction against the lengths of the answers."""
    predicted = np.array([p.tokens for p in predictions], np.float64)
    upper = np.array([p.upper_tokens for p in predictions], np.float64)
    actual = np.array(lengths, np.float64)
    errors = np.abs(predicted - actual)
    return Scores(
        n=len(actual),
        rmse=float(np.sqrt(np.mean(errors**2))),
        mae=float(errors.mean()),
        acc_50=float((errors <= 50).mean()),
        acc_100=float((errors <= 100).mean()),
        tau=kendall_tau(predicted, actual),
        pair_accuracy=pair_accuracy(predicted, actual),
        coverage=float((actual <= upper).mean()),
    )


def pair_accuracy(predicted: np.ndarray, actual: np.ndarray) -> float:
    """Return the share of random pairs of unequal answers whose predictions have their order; a tie counts half."""
    first, second = np.random.default_rng(0).integers(0, len(actual), (2, PAIRS))
    differs = actual[first] != actual[second]
    if not differs.any():
        return 0.5
    order = np.sign(predicted[first] - predicted[second]) * np.sign(actual[first] - actual[second])
    return float((order[differs] + 1).mean() / 2)


# With fewer outcomes of an application, rank correlation and coverage are mostly chance; not tuned.
FEWEST_OUTCOMES = 30


def accuracy_by_application(outcomes: Sequence[Outcome]) -> dict[str, Scores]:
    """Return each application's scores of served, complete answers, which show where a model drifts."""
    by_application = defaultdict(list)
    for outcome in outcomes:
        if not outcome.censored and outcome.predicted_tokens is not None:
            served = Prediction(outcome.predicted_tokens, outcome.predicted_upper_tokens or 0)
            by_application[outcome.prompt.application].append((served, outcome.generated_tokens))
    return {
        application: score(*zip(*judged, strict=True))
        for application, judged in sorted(by_application.items())
        if len(judged) >= FEWEST_OUTCOMES
    }
