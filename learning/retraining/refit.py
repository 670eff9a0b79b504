"""Continuous learning (Magnus III-B, III-D): refit on the log, judge on texts that are never learned.

Everything here is a function of the log and of the model in service; timers, tables and publishing are the trainer's.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np

from learning.predictors.length_predictor import LengthPredictor, Outcome
from learning.retraining.error_rules import LENGTH_RULE, SERVING_RULE, Rule
from learning.retraining.promotion_gate import compare, follows, noisy_spans, promotion_verdict
from learning.retraining.training_set import TrainingSetBounds, bounded, is_held_out
from learning.serving_time import ServedBatch, ServingTimes
from scheduling.costs import ServingCurves

Profiles = Mapping[tuple[str, str], ServingCurves]  # what workers measured of themselves, by worker and model

FEWEST_TRAINING = 40
FEWEST_HELD_OUT = 10
HELD_OUT = 1024  # newest held-out outcomes that judge
HELD_OUT_EVERY = 5  # batches have no text: each fifth only judges


@dataclass(frozen=True, slots=True)
class Candidate:
    """A refitted model and the verdict on it; `scores` compares it with the one in service and the baseline."""

    model: Any
    publish: bool
    reason: str
    scores: dict[str, Any]
    data: dict[str, Any]  # size and range of what it was trained and judged on


def refit(
    current: LengthPredictor | None,
    fresh: LengthPredictor,
    outcomes: Sequence[Outcome],
    *,
    since: float,
    now: float,
    bounds: TrainingSetBounds | None = None,
    rule: Rule = LENGTH_RULE,
) -> Candidate | None:
    """Fit `fresh` on the log's outcomes and judge it; None if nothing worth learning ended after `since`.

    `data["until"]` is what the next call's `since` should be.
    """
    bounds = bounds or TrainingSetBounds()
    whole = sorted((o for o in outcomes if not o.censored), key=lambda o: o.at)
    rule = rule.scaled_to([o.generated_tokens for o in whole])
    if not any(_surprising(o, rule) for o in whole if o.at > since):
        return None
    training, held_out = _split(whole, bounds, now, rule)
    if not _enough(training, held_out):
        return None
    fresh.fit(training)
    noise = noisy_spans(fresh, current, held_out)
    if noise:
        noise = [span for span in noise if not _learnable_alone(fresh, whole, span)]
        clean = [o for o in whole if not any(first <= o.at <= last for first, last in noise)]
        if _enough(*_split(clean, bounds, now, rule)):
            training, held_out = _split(clean, bounds, now, rule)
        fresh.fit(training)
    scores = compare(fresh, current, held_out)
    publish, reason = promotion_verdict(scores)
    data = {
        "training": len(training),
        "held_out": len(held_out),
        "from": training[0].at,
        "until": whole[-1].at,
        "noise": noise,
        "applications": sorted({o.prompt.application for o in training}),
    }
    return Candidate(fresh, publish, reason, {name: each.as_dict() for name, each in scores.items()}, data)


def _surprising(outcome: Outcome, rule: Rule) -> bool:
    predicted = outcome.predicted_tokens
    return predicted is None or rule.worth_learning(predicted, outcome.generated_tokens)


def _split(
    whole: Sequence[Outcome], bounds: TrainingSetBounds, now: float, rule: Rule
) -> tuple[list[Outcome], list[Outcome]]:
    """What to train on, what to judge by."""
    training = bounded(
        [o for o in whole if not is_held_out(o.prompt)], bounds, now, _application, lambda o: _surprising(o, rule)
    )
    judges = TrainingSetBounds(HELD_OUT, bounds.age_s)
    return training, bounded([o for o in whole if is_held_out(o.prompt)], judges, now, _application)


def _application(outcome: Outcome) -> str:
    return outcome.prompt.application


def _enough(training: Sequence[Outcome], held_out: Sequence[Outcome]) -> bool:
    return len(training) >= FEWEST_TRAINING and len(held_out) >= FEWEST_HELD_OUT


def _learnable_alone(fresh: LengthPredictor, whole: Sequence[Outcome], span: tuple[float, float]) -> bool:
    """Whether a stretch that contradicts all others has a sense of its own: new traffic, not noise."""
    first, last = span
    stretch = [o for o in whole if first <= o.at <= last]
    training = [o for o in stretch if not is_held_out(o.prompt)]
    held_out = [o for o in stretch if is_held_out(o.prompt)]
    if not _enough(training, held_out):
        return False
    fresh.fit(training)
    return follows(fresh, held_out)


def refit_serving_times(
    current: ServingTimes | None,
    batches: Sequence[ServedBatch],
    curves: Profiles,
    *,
    since: float,
    now: float,
    bounds: TrainingSetBounds | None = None,
    rule: Rule = SERVING_RULE,
) -> Candidate | None:
    """Refit the serving time estimators on the log's batches and judge them; None if nothing new is worth learning."""
    bounds = bounds or TrainingSetBounds()
    ordered = sorted(batches, key=lambda b: b.at)
    rule = rule.scaled_to([b.serving_s for b in ordered])
    in_service = current or ServingTimes()
    expected_s = _expected_s(in_service, ordered, curves)
    wrong = {b for b, s in zip(ordered, expected_s, strict=True) if rule.worth_learning(s, b.serving_s)}
    if not any(b.at > since and (b in wrong or current is None) for b in ordered):
        return None
    held_out = [b for b in ordered if _judges(b)]
    kept = [b for b in ordered if not _judges(b)]
    training = bounded(kept, bounds, now, lambda b: (b.worker, b.model), lambda b: b in wrong)
    if not training or not held_out:
        return None
    fresh = ServingTimes()
    fresh.fit(training, curves)
    scores = {
        "candidate": _errors(_expected_s(fresh, held_out, curves), held_out),
        "current": _errors(_expected_s(in_service, held_out, curves), held_out),
        "baseline": _errors([float(np.mean([b.serving_s for b in training]))] * len(held_out), held_out),
    }
    publish, reason = _serving_verdict(scores, replaces=current is not None)
    data = {"training": len(training), "held_out": len(held_out), "from": training[0].at, "until": ordered[-1].at}
    return Candidate(fresh, publish, reason, scores, data)


def _judges(batch: ServedBatch) -> bool:
    """Whether this batch only ever judges: one in five, the same ones for ever."""
    return crc32(f"{batch.worker} {batch.at:.6f}".encode()) % HELD_OUT_EVERY == 0


def _expected_s(times: ServingTimes, batches: Sequence[ServedBatch], curves: Profiles) -> list[float]:
    rows = defaultdict(list)
    for row, batch in enumerate(batches):
        rows[batch.worker, batch.model].append(row)
    expected = np.zeros(len(batches))
    for (worker, model), of_one in rows.items():
        shapes = np.array([(batches[i].size, batches[i].length, batches[i].generation_length) for i in of_one])
        expected[of_one] = times.of(worker, model, curves.get((worker, model))).serve_many_s(*shapes.T)
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
    if candidate > current:
        return False, "larger errors than " + ("the version in service" if replaces else "the profile")
    if candidate > baseline:
        return False, "not better than the constant baseline"
    return True, "not worse than " + ("the version in service" if replaces else "the profile")
