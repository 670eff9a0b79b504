"""Continuous learning by the papers' rules (Magnus III-B, III-D): what is worth learning, and what may be published.

Everything here is a function of the log of outcomes and of the model in service; timers, tables and publishing are
the trainer's. Nothing is ever learned from a held-out text, so held-out outcomes judge every version alike.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from learning.length import LengthPredictor, Outcome, Prediction
from learning.scores import score
from learning.serving_time import ServedBatch, ServingTimes
from learning.training_set import Bounds, bounded, is_held_out
from scheduling.costs import ServingCurves

FEWEST_TRAINING = 40
FEWEST_HELD_OUT = 10


@dataclass(frozen=True, slots=True)
class Rule:
    """An error is worth learning from when it exceeds both an absolute and a relative threshold."""

    absolute: float
    relative: float

    def worth_learning(self, predicted: float, actual: float) -> bool:
        """Whether this prediction was that far off."""
        error = abs(predicted - actual)
        return error > self.absolute and error > self.relative * actual


LENGTH_RULE = Rule(absolute=10, relative=0.10)  # tokens; every 3 minutes
SERVING_RULE = Rule(absolute=2.0, relative=0.20)  # seconds; every 2 minutes


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
    bounds: Bounds | None = None,
    rule: Rule = LENGTH_RULE,
) -> Candidate | None:
    """Fit `fresh` on the log's outcomes and judge it; None if nothing worth learning ended after `since`."""
    bounds = bounds or Bounds()
    whole = [o for o in outcomes if not o.censored]
    training = bounded([o for o in whole if not is_held_out(o.prompt) and _adds(o, rule)], bounds, now)
    held_out = bounded([o for o in whole if is_held_out(o.prompt)], bounds, now)
    if len(training) < FEWEST_TRAINING or len(held_out) < FEWEST_HELD_OUT or training[-1].at <= since:
        return None
    fresh.fit(training)
    prompts, lengths = [o.prompt for o in held_out], [o.generated_tokens for o in held_out]
    constant = int(np.median([o.generated_tokens for o in training]))
    scores = {
        "candidate": score(fresh.predict(prompts), lengths).as_dict(),
        "baseline": score([Prediction(constant, constant)] * len(lengths), lengths).as_dict(),
    }
    if current is not None:
        scores["current"] = score(current.predict(prompts), lengths).as_dict()
    publish, reason = verdict(scores)
    data = {
        "training": len(training),
        "held_out": len(held_out),
        "from": training[0].at,
        "until": training[-1].at,
        "applications": sorted({o.prompt.application for o in training}),
    }
    return Candidate(fresh, publish, reason, scores, data)


def _adds(outcome: Outcome, rule: Rule) -> bool:
    predicted = outcome.predicted_tokens
    return predicted is None or rule.worth_learning(predicted, outcome.generated_tokens)


def verdict(scores: Mapping[str, Mapping[str, float]]) -> tuple[bool, str]:
    """Whether a candidate with these scores may go into service, and why."""
    candidate, baseline, current = scores["candidate"], scores["baseline"], scores.get("current")
    if candidate["rmse"] >= baseline["rmse"]:
        return False, "not better than the constant baseline"
    if current and candidate["rmse"] > current["rmse"]:
        return False, "worse than the version in service"
    return True, "not worse than the version in service"


def refit_serving_times(
    current: ServingTimes | None,
    batches: Sequence[ServedBatch],
    curves: Mapping[tuple[str, str], ServingCurves],
    *,
    since: float,
    now: float,
    bounds: Bounds | None = None,
    rule: Rule = SERVING_RULE,
) -> Candidate | None:
    """Refit the serving time estimators on the log's batches and judge them; None if nothing new is worth learning."""
    held_out = [b for i, b in enumerate(sorted(batches, key=lambda b: b.at)) if i % 5 == 0]
    kept = [b for i, b in enumerate(sorted(batches, key=lambda b: b.at)) if i % 5]
    bounds = bounds or Bounds()
    fresh_ones = [b for b in kept if now - b.at <= bounds.age_s and _batch_adds(b, current, rule)]
    training = fresh_ones[-bounds.outcomes :]
    if not training or not held_out or training[-1].at <= since:
        return None
    fresh = ServingTimes()
    fresh.fit(training, curves)
    scores = {"candidate": _serving_scores(fresh, held_out, curves)}
    if current is not None:
        scores["current"] = _serving_scores(current, held_out, curves)
    publish = current is None or scores["candidate"]["rmse_s"] <= scores["current"]["rmse_s"]
    reason = ("not worse" if publish else "worse") + " than the version in service"
    data = {"training": len(training), "held_out": len(held_out), "from": training[0].at, "until": training[-1].at}
    return Candidate(fresh, publish, reason, scores, data)


def _batch_adds(batch: ServedBatch, current: ServingTimes | None, rule: Rule) -> bool:
    if current is None or (batch.worker, batch.model) not in current.estimators:
        return True
    expected = current.of(batch.worker, batch.model)
    return rule.worth_learning(expected.serve_s(batch.size, batch.length, batch.generation_length), batch.serving_s)


def _serving_scores(
    times: ServingTimes, batches: Sequence[ServedBatch], curves: Mapping[tuple[str, str], ServingCurves]
) -> dict[str, float]:
    errors = [
        times.of(b.worker, b.model, curves.get((b.worker, b.model))).serve_s(b.size, b.length, b.generation_length)
        - b.serving_s
        for b in batches
    ]
    return {
        "n": len(errors),
        "rmse_s": float(np.sqrt(np.mean(np.square(errors)))),
        "mae_s": float(np.mean(np.abs(errors))),
    }
