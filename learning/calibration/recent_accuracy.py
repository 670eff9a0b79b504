"""How well each application's recent predictions ranked, covered and measured its answers: where a model drifts."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from learning.metrics import score
from learning.predictors.length_predictor import Outcome, Prediction

FEWEST_OUTCOMES = 30  # of an application: with fewer, rank correlation and coverage are mostly chance; not tuned


@dataclass(frozen=True, slots=True)
class RecentAccuracy:
    """Scores of an application's recent predictions as they were served; the error is in tokens."""

    n: int
    tau: float
    coverage: float
    mae: float


def accuracy_by_application(outcomes: Sequence[Outcome]) -> dict[str, RecentAccuracy]:
    """The accuracy of each application with enough outcomes that were predicted and not cut off."""
    by_application = defaultdict(list)
    for outcome in outcomes:
        if not outcome.censored and outcome.predicted_tokens is not None:
            by_application[outcome.prompt.application].append(outcome)
    return {
        application: _accuracy(judged)
        for application, judged in sorted(by_application.items())
        if len(judged) >= FEWEST_OUTCOMES
    }


def _accuracy(outcomes: Sequence[Outcome]) -> RecentAccuracy:
    served = [Prediction(o.predicted_tokens or 0, o.predicted_upper_tokens or 0) for o in outcomes]
    scores = score(served, [o.generated_tokens for o in outcomes])
    return RecentAccuracy(scores.n, scores.tau, scores.coverage, scores.mae)
