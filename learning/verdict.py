"""May a candidate go into service? And which stretches of the log teach nothing but noise?"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from learning.length import LengthPredictor, Outcome, Prediction
from learning.scores import Scores, score

Numbers = npt.NDArray[np.float64]

SLICE = 60  # held-out outcomes that a stretch of the log is judged by
NOISE = 1.10  # a stretch is noise where the squared error is so many times that of knowing no prompt
LEARNABLE = 0.95  # and not noise after all where a model fitted on it alone gets below this
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
    upper = np.quantile(others, 0.9) if len(others) else length
    return Prediction(round(float(np.median(others))) if len(others) else length, round(float(upper)))


def noisy_spans(
    candidate: LengthPredictor, current: LengthPredictor | None, held_out: Sequence[Outcome]
) -> list[tuple[float, float]]:
    """Stretches of time whose held-out answers do not follow from their prompts, in the eyes of either model."""
    spans = []
    for stretch in _slices(held_out):
        errors = [relative_error(candidate, stretch)] + ([relative_error(current, stretch)] if current else [])
        if min(errors) > NOISE:
            spans.append((stretch[0].at, stretch[-1].at))
    return spans


def relative_error(predictor: LengthPredictor, outcomes: Sequence[Outcome]) -> float:
    """The squared error as a share of the constant baseline's; 0 where all is within the paper's tolerance."""
    lengths = _lengths(outcomes)
    own = _squared(predictor.predict([o.prompt for o in outcomes]), lengths)
    if own <= CLOSE_TOKENS**2:
        return 0.0
    return own / max(_squared(constants(outcomes), lengths), 1e-9)


def compare(
    candidate: LengthPredictor, current: LengthPredictor | None, held_out: Sequence[Outcome]
) -> dict[str, Scores]:
    """Scores of the candidate, of the one in service and of the baseline."""
    lengths, prompts = [o.generated_tokens for o in held_out], [o.prompt for o in held_out]
    scores = {"candidate": score(candidate.predict(prompts), lengths), "baseline": score(constants(held_out), lengths)}
    return scores | ({"current": score(current.predict(prompts), lengths)} if current else {})


def verdict(scores: Mapping[str, Scores]) -> tuple[bool, str]:
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


def _lengths(outcomes: Sequence[Outcome]) -> Numbers:
    return np.array([o.generated_tokens for o in outcomes], np.float64)


def _squared(predictions: Sequence[Prediction], lengths: Numbers) -> float:
    return float(np.mean((np.array([p.tokens for p in predictions], np.float64) - lengths) ** 2))
