"""May a candidate go into service? And which stretches of the log teach nothing but noise?"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from learning.metrics import Scores, score
from learning.predictors.length_predictor import LengthPredictor, Outcome, Prediction
from scheduling.request import COVERAGE

Numbers = npt.NDArray[np.float64]

SLICE = 60  # held-out outcomes that a stretch of the log is judged by
LOST = 0.5  # a stretch is noise where no model's tau reaches so much of what it usually is
LEAST_TAU = 0.15  # or this, about two standard errors of the tau of 60 answers that follow from nothing
LEARNABLE = 0.95  # not noise after all where a model fitted on it alone has so much of the constant's squared error
CLOSE_TOKENS = 10.0  # III-B's tolerance: applications whose answers are all alike cannot beat a constant, nor need to
LEAST_TAU_LOSS = 0.01  # of Kendall's tau that a candidate may lose to the one in service


def constants(outcomes: Sequence[Outcome]) -> list[Prediction]:
    """The constant baseline: of each outcome, the median length of its application's others."""
    lengths = defaultdict(list)
    for outcome in outcomes:
        lengths[outcome.prompt.application].append(outcome.generated_tokens)
    ordered = {application: np.sort(of_one) for application, of_one in lengths.items()}
    return [_without(ordered[o.prompt.application], o.generated_tokens) for o in outcomes]


def _without(ordered: npt.NDArray[np.int64], length: int) -> Prediction:
    others = np.delete(ordered, np.searchsorted(ordered, length))
    upper = np.quantile(others, COVERAGE) if len(others) else length
    return Prediction(round(float(np.median(others))) if len(others) else length, round(float(upper)))


def noisy_spans(
    candidate: LengthPredictor, current: LengthPredictor | None, held_out: Sequence[Outcome]
) -> list[tuple[float, float]]:
    """Stretches of time whose held-out answers do not follow from their prompts, in the eyes of either model.

    Both rank them worse than others, and the one in service errs more than a constant would. A candidate's errors say
    nothing here: one that has learned noise expects it.
    """
    stretches = _slices(held_out)
    models = [candidate, current] if current else [candidate]
    taus = np.array([[score(*_said(model, stretch)).tau for model in models] for stretch in stretches]).max(axis=1)
    lost = taus < max(LEAST_TAU, LOST * float(np.quantile(taus, 0.75)))
    return [
        (stretch[0].at, stretch[-1].at)
        for stretch, is_lost in zip(stretches, lost, strict=True)
        if is_lost and relative_error(models[-1], stretch) > 1
    ]


def follows(predictor: LengthPredictor, outcomes: Sequence[Outcome]) -> bool:
    """Whether answers follow from their prompts in this predictor's eyes: it errs less than a constant, and ranks."""
    error = relative_error(predictor, outcomes)
    return error == 0 or (error < LEARNABLE and score(*_said(predictor, outcomes)).tau >= LEAST_TAU)


def relative_error(predictor: LengthPredictor, outcomes: Sequence[Outcome]) -> float:
    """The squared error as a share of the constant baseline's; 0 where all is within the paper's tolerance."""
    lengths = _lengths(outcomes)
    own = _squared(_said(predictor, outcomes)[0], lengths)
    if own <= CLOSE_TOKENS**2:
        return 0.0
    return own / max(_squared(constants(outcomes), lengths), 1e-9)


def compare(
    candidate: LengthPredictor, current: LengthPredictor | None, held_out: Sequence[Outcome]
) -> dict[str, Scores]:
    """Scores of the candidate, of the one in service and of the baseline."""
    scores = {
        "candidate": score(*_said(candidate, held_out)),
        "baseline": score(constants(held_out), [o.generated_tokens for o in held_out]),
    }
    return scores | ({"current": score(*_said(current, held_out))} if current else {})


def promotion_verdict(scores: Mapping[str, Scores]) -> tuple[bool, str]:
    """Whether a candidate with these scores may go into service, and why."""
    candidate, baseline, current = scores["candidate"], scores["baseline"], scores.get("current")
    if candidate.rmse >= baseline.rmse and candidate.rmse > CLOSE_TOKENS:
        return False, "not better than the constant baseline"
    if current and candidate.rmse > current.rmse:
        return False, "larger errors than the version in service"
    if current and candidate.tau < current.tau - LEAST_TAU_LOSS:
        return False, "ranks worse than the version in service"
    return True, "not worse than the version in service" if current else "better than the constant baseline"


def _slices(outcomes: Sequence[Outcome]) -> list[Sequence[Outcome]]:
    """Consecutive stretches of at least SLICE outcomes, or one of all."""
    many = max(1, len(outcomes) // SLICE)
    bounds = np.linspace(0, len(outcomes), many + 1).astype(int)
    return [outcomes[a:b] for a, b in pairwise(bounds.tolist())]


def _said(predictor: LengthPredictor, outcomes: Sequence[Outcome]) -> tuple[list[Prediction], list[int]]:
    """What the predictor says of these answers, and their lengths."""
    return predictor.predict([o.prompt for o in outcomes]), [o.generated_tokens for o in outcomes]


def _lengths(outcomes: Sequence[Outcome]) -> Numbers:
    return np.array([o.generated_tokens for o in outcomes], np.float64)


def _squared(predictions: Sequence[Prediction], lengths: Numbers) -> float:
    return float(np.mean((np.array([p.tokens for p in predictions], np.float64) - lengths) ** 2))
