"""The drift guard: do recent predictions still rank and cover, application by application?"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from learning.metrics import score
from learning.predictors.length_predictor import Outcome, Prediction

FEWEST = 30  # judged outcomes of an application
LEAST_TAU = 0.2
LEAST_COVERAGE = 0.75
CLOSE_TOKENS = (
    10.0  # answers that are all alike cannot be ranked, and need not be: the size is right (III-B's 10 tokens)
)


@dataclass(frozen=True, slots=True)
class Drift:
    """How well an application's recent predictions did as they were served."""

    n: int
    tau: float
    coverage: float
    mae: float

    @property
    def trusted(self) -> bool:
        """Whether policies may order and reserve by these predictions."""
        return (self.tau >= LEAST_TAU or self.mae <= CLOSE_TOKENS) and self.coverage >= LEAST_COVERAGE


def drift(outcomes: Sequence[Outcome]) -> dict[str, Drift]:
    """The state of each application that has enough judged outcomes among these."""
    by_application = defaultdict(list)
    for outcome in outcomes:
        if not outcome.censored and outcome.predicted_tokens is not None:
            by_application[outcome.prompt.application].append(outcome)
    return {name: _drift(judged) for name, judged in sorted(by_application.items()) if len(judged) >= FEWEST}


def _drift(outcomes: Sequence[Outcome]) -> Drift:
    served = [Prediction(o.predicted_tokens or 0, o.predicted_upper_tokens or 0) for o in outcomes]
    scores = score(served, [o.generated_tokens for o in outcomes])
    return Drift(scores.n, scores.tau, scores.coverage, scores.mae)
