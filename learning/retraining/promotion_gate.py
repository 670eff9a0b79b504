"""Decides whether a candidate replaces the model in service, and finds spans of the log that no model can learn."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from learning.estimators.metrics import Scores, score
from learning.features.length_predictor import LengthPredictor, Outcome, Prediction
from scheduling.request import COVERAGE

SPAN_OUTCOMES = 60  # held-out outcomes of a span: fewer make its tau uncertain, more miss short noise; not tuned
NOISE_TAU_SHARE = 0.5  # in a noisy span both models' tau is below this share of the usual, or LEAST_TAU; not tuned
LEAST_TAU = 0.15  # about two standard errors of tau for 60 answers that are unrelated to their prompts
# A span is learnable if a model fitted on it alone has less than this share of the constant's squared error. At 1,
# chance would decide; not tuned.
LEARNABLE_ERROR = 0.95
CLOSE_TOKENS = 10.0  # tolerance of III-B, needed because no model beats a constant if all answers are equally long
LEAST_TAU_LOSS = 0.01  # a candidate that loses more of Kendall's tau ranks worse; less may be chance; not tuned


def constant_baseline(outcomes: Sequence[Outcome]) -> list[Prediction]:
    """Return for each outcome the median length of its application's other outcomes as a prediction."""
    lengths = defaultdict(list)
    for outcome in outcomes:
        lengths[outcome.prompt.application].append(outcome.generated_tokens)
    ordered = {application: np.sort(of_one) for application, of_one in lengths.items()}
    return [_median_of_others(ordered[o.prompt.application], o.generated_tokens) for o in outcomes]


def _median_of_others(ordered: npt.NDArray[np.int64], length: int) -> Prediction:
    others = np.delete(ordered, np.searchsorted(ordered, length))
    upper = np.quantile(others, COVERAGE) if len(others) else length
    return Prediction(round(float(np.median(others))) if len(others) else length, round(float(upper)))


def noisy_spans(
    candidate: LengthPredictor, current: LengthPredictor | None, held_out: Sequence[Outcome]
) -> list[tuple[float, float]]:
    """Return the spans of time, (first, last) in seconds, in which held-out lengths do not depend on their prompts.

    Both models rank such a span worse than others, and the model in service has larger errors than a constant. The
    candidate's errors do not count, because a candidate that was trained on noise predicts it.
    """
    bounds = np.linspace(0, len(held_out), max(1, len(held_out) // SPAN_OUTCOMES) + 1).astype(int)
    spans = [held_out[first:last] for first, last in pairwise(bounds.tolist())]
    models = [candidate, current] if current else [candidate]
    taus = np.array([[_score(model, span).tau for model in models] for span in spans]).max(axis=1)
    unranked = taus < max(LEAST_TAU, NOISE_TAU_SHARE * float(np.quantile(taus, 0.75)))
    return [
        (span[0].at, span[-1].at)
        for span, is_unranked in zip(spans, unranked, strict=True)
        if is_unranked and relative_error(models[-1], span) > 1
    ]


def is_learnable(predictor: LengthPredictor, outcomes: Sequence[Outcome]) -> bool:
    """Return whether the predictor beats a constant on these outcomes and ranks them."""
    error = relative_error(predictor, outcomes)
    return error == 0 or (error < LEARNABLE_ERROR and _score(predictor, outcomes).tau >= LEAST_TAU)


def relative_error(predictor: LengthPredictor, outcomes: Sequence[Outcome]) -> float:
    """Return the mean squared error divided by the constant baseline's; 0 within the paper's tolerance."""
    own = _mean_squared_error(predictor.predict([o.prompt for o in outcomes]), outcomes)
    if own <= CLOSE_TOKENS**2:
        return 0.0
    return own / max(_mean_squared_error(constant_baseline(outcomes), outcomes), 1e-9)


def compare(
    candidate: LengthPredictor, current: LengthPredictor | None, held_out: Sequence[Outcome]
) -> dict[str, Scores]:
    """Return the scores of the candidate, of the constant baseline and, if there is any, of the model in service."""
    scores = {
        "candidate": _score(candidate, held_out),
        "baseline": score(constant_baseline(held_out), _lengths(held_out)),
    }
    return scores | ({"current": _score(current, held_out)} if current else {})


def promotion_verdict(scores: Mapping[str, Scores]) -> tuple[bool, str]:
    """Return whether a candidate with these scores goes into service, and why."""
    candidate, baseline, current = scores["candidate"], scores["baseline"], scores.get("current")
    if candidate.rmse >= baseline.rmse and candidate.rmse > CLOSE_TOKENS:
        return False, "not better than the constant baseline"
    if current and candidate.rmse > current.rmse:
        return False, "larger errors than the version in service"
    if current and candidate.tau < current.tau - LEAST_TAU_LOSS:
        return False, "ranks worse than the version in service"
    return True, "not worse than the version in service" if current else "better than the constant baseline"


def _score(predictor: LengthPredictor, outcomes: Sequence[Outcome]) -> Scores:
    return score(predictor.predict([o.prompt for o in outcomes]), _lengths(outcomes))


def _lengths(outcomes: Sequence[Outcome]) -> list[int]:
    return [o.generated_tokens for o in outcomes]


def _mean_squared_error(predictions: Sequence[Prediction], outcomes: Sequence[Outcome]) -> float:
    predicted = np.array([p.tokens for p in predictions], np.float64)
    return float(np.mean((predicted - np.array(_lengths(outcomes), np.float64)) ** 2))
