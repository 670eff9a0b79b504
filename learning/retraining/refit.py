"""Continuous learning (Magnus III-B, III-D): refits a model on the log and judges it on held-out texts.

A result depends on the log and on the model in service alone. `tasks/training/refit_jobs.py` calls these functions at
intervals and publishes the candidates that pass (see `learning/store.py`).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np

from learning.estimators.serving_time import ServingTimes
from learning.features.length_predictor import LengthPredictor, Outcome
from learning.retraining.promotion_gate import compare, is_learnable, noisy_spans, promotion_verdict
from learning.retraining.training_set import (
    LENGTH_RULE,
    SERVING_RULE,
    ErrorRule,
    TrainingSetBounds,
    is_held_out,
    known_lengths,
    published_entries,
    select_entries,
)
from scheduling.costs import ServedBatch, ServingCurves

Profiles = Mapping[tuple[str, str], ServingCurves]  # the curves that workers measured, by worker and model

# A refit needs this many outcomes. One text in five is held out, so 40 for training come with about 10 held-out ones.
# With fewer, chance decides; more delay the first model. Not tuned.
FEWEST_TRAINING, FEWEST_HELD_OUT = 40, 10
MOST_HELD_OUT = 1024  # newest held-out outcomes that judge: more make a verdict surer, but slower and older; not tuned
HELD_OUT_EVERY = 5  # one batch in five is held out, as one text in five is
AS_PUBLISHED = True, "the paper puts every refit into service"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A refitted model and the verdict on it; `scores` compares it with the model in service and a constant."""

    model: Any
    publish: bool
    reason: str
    scores: dict[str, Any]
    data: dict[str, Any]  # the numbers and the time span of the entries that trained and judged it


def refit(
    current: LengthPredictor | None,
    untrained: LengthPredictor,
    outcomes: Sequence[Outcome],
    *,
    since: float,
    now: float,
    bounds: TrainingSetBounds | None = None,
    published: bool = False,
) -> Candidate | None:
    """Fit `untrained` on the log's outcomes and judge it.

    With `published`, as in the paper, the error rule has the paper's thresholds and chooses what is added to the
    training set, and the candidate is always published.
    Returns None if no request that ended after `since` had an error worth learning from, or if there are too few
    outcomes. The candidate's `data["until"]` is the `since` of the next call.
    """
    bounds = bounds or TrainingSetBounds()
    complete = sorted(known_lengths(outcomes), key=lambda o: o.at)
    rule = LENGTH_RULE if published else LENGTH_RULE.scaled_to([o.generated_tokens for o in complete])
    if not any(_worth_learning(o, rule) for o in complete if o.at > since):
        return None
    candidate = untrained
    training, held_out = _split(complete, bounds, now, rule)
    if published:
        training = published_entries(training, lambda o: _worth_learning(o, rule))
    if not _enough(training, held_out):
        return None
    candidate.fit(training)
    noise = [] if published else noisy_spans(candidate, current, held_out)
    if noise:
        noise = [span for span in noise if not _learnable_alone(candidate, complete, span)]
        clean = [o for o in complete if not any(first <= o.at <= last for first, last in noise)]
        if _enough(*_split(clean, bounds, now, rule)):
            training, held_out = _split(clean, bounds, now, rule)
        candidate.fit(training)
    scores = compare(candidate, current, held_out)
    publish, reason = AS_PUBLISHED if published else promotion_verdict(scores)
    data = {
        "training": len(training),
        "held_out": len(held_out),
        "from": training[0].at,
        "until": complete[-1].at,
        "noise": noise,
        "applications": sorted({o.prompt.application for o in training}),
    }
    return Candidate(candidate, publish, reason, {name: each.as_dict() for name, each in scores.items()}, data)


def _worth_learning(outcome: Outcome, rule: ErrorRule) -> bool:
    predicted = outcome.predicted_tokens
    return predicted is None or rule.worth_learning(predicted, outcome.generated_tokens)


def _split(
    complete: Sequence[Outcome], bounds: TrainingSetBounds, now: float, rule: ErrorRule
) -> tuple[list[Outcome], list[Outcome]]:
    """Return the outcomes to train on, and the held-out outcomes to judge by."""
    training = select_entries(
        [o for o in complete if not is_held_out(o.prompt)],
        bounds,
        now,
        _application,
        lambda o: _worth_learning(o, rule),
    )
    newest = TrainingSetBounds(min(MOST_HELD_OUT, bounds.outcomes), bounds.age_s)
    return training, select_entries([o for o in complete if is_held_out(o.prompt)], newest, now, _application)


def _application(outcome: Outcome) -> str:
    return outcome.prompt.application


def _enough(training: Sequence[Outcome], held_out: Sequence[Outcome]) -> bool:
    return len(training) >= FEWEST_TRAINING and len(held_out) >= FEWEST_HELD_OUT


def _learnable_alone(untrained: LengthPredictor, complete: Sequence[Outcome], span: tuple[float, float]) -> bool:
    """Return whether a model trained on this span alone can predict it; the span is then new traffic, not noise."""
    first, last = span
    inside = [o for o in complete if first <= o.at <= last]
    held_out = [o for o in inside if is_held_out(o.prompt)]
    training = [o for o in inside if not is_held_out(o.prompt)]
    if not _enough(training, held_out):
        return False
    untrained.fit(training)
    return is_learnable(untrained, held_out)


def refit_serving_times(
    current: ServingTimes | None,
    batches: Sequence[ServedBatch],
    curves: Profiles,
    *,
    since: float,
    now: float,
    published: bool = False,
) -> Candidate | None:
    """Refit the serving time estimators on the log's batches and judge them; return None as `refit` does.

    With `published`, as in the paper, a plain KNN is published whatever its errors, and the error rule chooses what is
    added to the training set.
    """
    ordered = sorted(batches, key=lambda b: b.at)
    rule = SERVING_RULE if published else SERVING_RULE.scaled_to([b.serving_s for b in ordered])
    in_service = current or ServingTimes()
    expected_s = _expected_s(in_service, ordered, curves)
    wrong = {b for b, s in zip(ordered, expected_s, strict=True) if rule.worth_learning(s, b.serving_s)}
    if not any(b.at > since and (b in wrong or current is None) for b in ordered):
        return None
    held_out = [b for b in ordered if _is_held_out(b)]
    others = [b for b in ordered if not _is_held_out(b)]
    training = select_entries(others, TrainingSetBounds(), now, lambda b: (b.worker, b.model), lambda b: b in wrong)
    if published:
        training = published_entries(training, lambda b: b in wrong)
    if not training or not held_out:
        return None
    candidate = ServingTimes(plain=published)
    candidate.fit(training, curves)
    scores = {
        "candidate": _errors(_expected_s(candidate, held_out, curves), held_out),
        "current": _errors(_expected_s(in_service, held_out, curves), held_out),
        "baseline": _errors([float(np.mean([b.serving_s for b in training]))] * len(held_out), held_out),
    }
    publish, reason = AS_PUBLISHED if published else _serving_verdict(scores, replaces=current is not None)
    data = {"training": len(training), "held_out": len(held_out), "from": training[0].at, "until": ordered[-1].at}
    return Candidate(candidate, publish, reason, scores, data)


def _is_held_out(batch: ServedBatch) -> bool:
    """Return whether this batch is held out; a hash chooses one in five, always the same ones."""
    return crc32(f"{batch.worker} {batch.at:.6f}".encode()) % HELD_OUT_EVERY == 0


def _expected_s(times: ServingTimes, batches: Sequence[ServedBatch], curves: Profiles) -> list[float]:
    rows = defaultdict(list)
    for row, batch in enumerate(batches):
        rows[batch.worker, batch.model].append(row)
    expected = np.zeros(len(batches))
    for (worker, model), of_one in rows.items():
        shapes = np.array([(batches[i].size, batches[i].length, batches[i].generation_length) for i in of_one])
        expected[of_one] = times.serving_time_for(worker, model, curves.get((worker, model))).serve_many_s(*shapes.T)
    return [float(s) for s in expected]


def _errors(expected_s: Sequence[float], batches: Sequence[ServedBatch]) -> dict[str, float]:
    errors = np.array(expected_s) - np.array([b.serving_s for b in batches])
    return {
        "n": len(errors),
        "rmse_s": round(float(np.sqrt(np.mean(errors**2))), 6),
        "mae_s": round(float(np.mean(np.abs(errors))), 6),
    }


def _serving_verdict(scores: Mapping[str, Mapping[str, float]], replaces: bool) -> tuple[bool, str]:
    candidate, current, baseline = (scores[name]["rmse_s"] for name in ("candidate", "current", "baseline"))
    in_service = "the version in service" if replaces else "the profile"
    if candidate > current:
        return False, f"larger errors than {in_service}"
    if candidate > baseline:
        return False, "not better than the constant baseline"
    return True, f"not worse than {in_service}"
