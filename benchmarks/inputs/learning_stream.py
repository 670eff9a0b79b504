"""A stream of requests and batches in virtual time, and a service that predicts them and learns from them."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from benchmarks.inputs.request_sources import AnsweredRequest
from learning.metrics import score
from learning.predictors.length_predictor import LengthPredictor, Outcome
from learning.retraining.refit import Candidate, refit, refit_serving_times
from learning.retraining.training_set import LENGTH_RULE, TrainingSetBounds
from learning.serving_time import ServedBatch, ServingTimes
from scheduling.simulation.published_costs import CHATGLM_6B_V100

LENGTH_EVERY_S = 180  # seconds between two fits of the length predictor (Magnus III-B)
SERVING_EVERY_S = 120  # seconds between two fits of the serving times (Magnus III-D)
# Assumptions of the stream, none of them measured; the figures in docs/results hold for these values.
RESPONSE_S = 30  # seconds from a request's arrival to its outcome in the log
BATCH = 8  # arrivals, of which a random number is served together
ENGINE_NOISE = 0.05  # standard deviation of the logarithm of serving times
OVERHEAD = 1.25  # the engine's serving times as a multiple of the published curves


@dataclass(frozen=True, slots=True)
class StreamedRequest:
    """A request of the stream; `length` is the answer's length as the log records it."""

    at: float
    answered: AnsweredRequest
    length: int


@dataclass(slots=True)
class LearningHistory:
    """The errors of both models in service, minute by minute, and every refit of the length predictor."""

    minutes: list[int] = field(default_factory=list)
    length_rmse: list[float] = field(default_factory=list)
    serving_rmse_s: list[float] = field(default_factory=list)
    refits: list[dict[str, Any]] = field(default_factory=list)


def poisson_arrivals(
    mixes: Sequence[Sequence[AnsweredRequest]], rate: float, duration_s: float, rng: random.Random
) -> list[StreamedRequest]:
    """Draw Poisson arrivals from one mix after the other; each draws a task and then one of the task's requests."""
    arrivals: list[StreamedRequest] = []
    at = 0.0
    tasks = [sorted({a.task for a in mix}) for mix in mixes]
    pools = [
        {task: [a for a in mix if a.task == task and not a.is_test] for task in {a.task for a in mix}} for mix in mixes
    ]
    while True:
        at += rng.expovariate(rate)
        if at >= duration_s:
            return arrivals
        mix = int(at / duration_s * len(mixes))
        answered = rng.choice(pools[mix][rng.choice(tasks[mix])])
        arrivals.append(StreamedRequest(at, answered, answered.outcome.generated_tokens))


def with_shuffled_lengths(
    arrivals: Sequence[StreamedRequest], first_s: float, last_s: float, rng: random.Random
) -> list[StreamedRequest]:
    """Shuffle the lengths of the arrivals between `first_s` and `last_s` among them."""
    inside = [i for i, a in enumerate(arrivals) if first_s <= a.at < last_s]
    lengths = [arrivals[i].length for i in inside]
    rng.shuffle(lengths)
    changed = list(arrivals)
    for i, length in zip(inside, lengths, strict=True):
        changed[i] = replace(arrivals[i], length=length)
    return changed


def batches_of(arrivals: Sequence[StreamedRequest], rng: random.Random) -> list[ServedBatch]:
    """Form batches of random size from the arrivals, each as long as its longest rows, served by a noisy engine."""
    served = []
    for start in range(0, len(arrivals), BATCH):
        group = arrivals[start : start + BATCH]
        rows = group[: rng.randint(1, BATCH)]
        length = max(a.answered.outcome.prompt.prompt_tokens for a in rows)
        generated = max(a.answered.outcome.generated_tokens for a in rows)
        seconds = OVERHEAD * CHATGLM_6B_V100.curves.serve_s(len(rows), length, generated)
        seconds *= rng.lognormvariate(0, ENGINE_NOISE)
        served.append(ServedBatch("v100", "chatglm", len(rows), length, generated, seconds, group[-1].at + RESPONSE_S))
    return served


@dataclass(slots=True)
class Learner:
    """Predictor, serving time estimator and trainer of a service, in virtual time."""

    make_untrained: Callable[[], LengthPredictor]
    bounds: TrainingSetBounds
    predictor: LengthPredictor = field(init=False)
    times: ServingTimes | None = None
    log: list[Outcome] = field(default_factory=list)
    batches: list[ServedBatch] = field(default_factory=list)
    _lengths_until: float = -1.0
    _batches_until: float = -1.0
    _published: bool = False

    def __post_init__(self) -> None:
        self.predictor = self.make_untrained()

    def serve(self, arrivals: Sequence[StreamedRequest]) -> None:
        """Predict these arrivals and put their outcomes into the log."""
        outcomes = [a.answered.outcome for a in arrivals]
        for arrival, outcome, predicted in zip(
            arrivals, outcomes, self.predictor.predict([o.prompt for o in outcomes]), strict=True
        ):
            self.log.append(
                replace(
                    outcome,
                    generated_tokens=arrival.length,
                    predicted_tokens=predicted.tokens,
                    predicted_upper_tokens=predicted.upper_tokens,
                    at=arrival.at + RESPONSE_S,
                )
            )

    def refit_length(self, now: float) -> Candidate | None:
        """Refit the length predictor, as the trainer does every 3 minutes; returns None without anything to learn."""
        seen = [o for o in self.log if o.at <= now]
        current = self.predictor if self._published else None
        candidate = refit(current, self.make_untrained(), seen, since=self._lengths_until, now=now, bounds=self.bounds)
        if candidate:
            self._lengths_until = candidate.data["until"]
            if candidate.publish:
                self.predictor, self._published = candidate.model, True
        return candidate

    def refit_serving(self, now: float) -> Candidate | None:
        """Refit the serving time estimator, as the trainer does every 2 minutes."""
        seen = [b for b in self.batches if b.at <= now]
        candidate = refit_serving_times(self.times, seen, {}, since=self._batches_until, now=now, bounds=self.bounds)
        if candidate:
            self._batches_until = candidate.data["until"]
            if candidate.publish:
                self.times = candidate.model
        return candidate


class LearnerAsPrinted(Learner):
    """Magnus III-B as printed: mispredicted requests are added to the training set for ever.

    The paper begins with a trained predictor, so the first training set is what was served before the first refit.
    Every refit goes into service: the paper has no condition for publishing, no bound on the set, no held-out texts.
    """

    training: list[Outcome]

    def refit_length(self, now: float) -> Candidate | None:
        """Add the new mispredicted requests and fit on all added ones; returns None without new ones."""
        new = [o for o in self.log if self._lengths_until < o.at <= now]
        first = self._lengths_until < 0
        added = [o for o in new if first or LENGTH_RULE.worth_learning(o.predicted_tokens or 0, o.generated_tokens)]
        self._lengths_until = now
        if not added:
            return None
        self.training = ([] if first else self.training) + added
        model = self.make_untrained()
        model.fit(self.training)
        self.predictor = model
        data = {"training": len(self.training), "held_out": 0, "noise": [], "until": now}
        return Candidate(model, True, "III-B has no gate", {}, data)


def length_rmse(predictor: LengthPredictor, test: Sequence[AnsweredRequest]) -> float:
    """Compute the predictor's error on requests that are in no stream."""
    outcomes = [a.outcome for a in test]
    return score(predictor.predict([o.prompt for o in outcomes]), [o.generated_tokens for o in outcomes]).rmse


def serving_rmse_s(times: ServingTimes | None, test: Sequence[ServedBatch]) -> float:
    """Compute the estimator's error on these batches."""
    known = (times or ServingTimes()).serving_time_for("v100", "chatglm")
    shapes = np.array([(b.size, b.length, b.generation_length) for b in test]).T
    return float(np.sqrt(np.mean((known.serve_many_s(*shapes) - np.array([b.serving_s for b in test])) ** 2)))
