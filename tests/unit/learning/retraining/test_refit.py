"""Continuous learning: what is refitted, what is published, and what noise must not do."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from learning.estimators.metrics import score
from learning.estimators.serving_time import ServingTimes
from learning.features.length_predictor import LengthPredictor, Outcome
from learning.features.text_encoders import make_encoder
from learning.predictors.predictor_factory import make_predictor
from learning.retraining.refit import Candidate, refit, refit_serving_times
from learning.retraining.training_set import INITIAL_ENTRIES, is_held_out
from scheduling.costs import ServedBatch, ServingCurves
from tests.unit.learning.made_up_lengths import later, outcomes, shuffled

CURVES = ServingCurves((2e-5, 1e-4, 0.0, 0.01), (2e-8, 3e-4, 1e-6, 0.02))


def untrained(name: str = "usin") -> LengthPredictor:
    return make_predictor(name, make_encoder("hashing"))


def learn(
    current: LengthPredictor | None, log: Sequence[Outcome], *, since: float = -1.0, now: float = 10_000.0
) -> Candidate | None:
    return refit(current, untrained(), log, since=since, now=now)


def test_the_first_candidate_is_published_once_it_beats_a_constant() -> None:
    candidate = learn(None, outcomes(200))
    assert candidate is not None
    assert candidate.publish
    assert candidate.scores["candidate"]["rmse"] < candidate.scores["baseline"]["rmse"]
    assert (candidate.data["from"], candidate.data["until"]) == (0.0, 199.0)
    assert candidate.data["applications"] == ["echo"]


def test_nothing_is_refitted_without_an_error_worth_learning() -> None:
    predicted = [replace(o, predicted_tokens=o.generated_tokens) for o in outcomes(200)]
    assert learn(None, predicted) is None
    assert learn(None, outcomes(200), since=199.0) is None
    assert learn(None, outcomes(30)) is None  # too few


def test_held_out_texts_are_never_trained_on() -> None:
    log = outcomes(300)
    candidate = learn(None, log)
    assert candidate is not None
    held_out = sum(is_held_out(o.prompt) for o in log)
    assert (candidate.data["training"], candidate.data["held_out"]) == (300 - held_out, held_out)


def test_a_worse_candidate_is_kept_back() -> None:
    good = untrained()
    good.fit(outcomes(600, seed=9))
    candidate = learn(good, outcomes(60, noise=12))
    assert candidate is not None
    assert not candidate.publish
    assert "version in service" in candidate.reason


def test_lengths_that_do_not_depend_on_their_prompts_are_never_published() -> None:
    candidate = learn(None, shuffled(outcomes(400)))
    assert candidate is not None
    assert not candidate.publish
    assert candidate.reason == "not better than the constant baseline"


def test_a_poisoned_span_is_neither_trained_on_nor_judged_by() -> None:
    first = learn(None, outcomes(400))
    assert first is not None
    poison = later(shuffled(outcomes(400, seed=1)), 400)
    candidate = learn(first.model, [*outcomes(400), *poison, *later(outcomes(100, seed=2), 800)], since=399.0)
    assert candidate is not None
    assert candidate.data["noise"]
    clean = outcomes(200, seed=3)
    errors = [
        score(model.predict([o.prompt for o in clean]), [o.generated_tokens for o in clean]).rmse
        for model in (first.model, candidate.model)
    ]
    assert not candidate.publish or errors[1] <= 1.1 * errors[0]


def test_new_traffic_that_can_be_learned_is_not_taken_for_noise() -> None:
    first = learn(None, outcomes(400))
    assert first is not None
    changed = later(outcomes(400, slope=12, application="other"), 400)
    candidate = learn(first.model, [*outcomes(400), *changed], since=399.0)
    assert candidate is not None
    assert candidate.publish
    assert candidate.data["noise"] == []


def served(n: int, *, seed: int = 0, factor: float = 1.0, worker: str = "a", noise: float = 0.03) -> list[ServedBatch]:
    rng = np.random.default_rng(seed)
    made = []
    for i in range(n):
        size, length, generated = (int(rng.integers(1, top)) for top in (20, 500, 300))
        seconds = factor * CURVES.serve_s(size, length, generated) * float(np.exp(rng.normal(0, noise)))
        made.append(ServedBatch(worker, "m", size, length, generated, seconds, float(i)))
    return made


def test_serving_times_are_learned_from_the_first_batches_on() -> None:
    candidate = refit_serving_times(None, served(200, factor=1.4), {("a", "m"): CURVES}, since=-1, now=300)
    assert candidate is not None
    assert candidate.publish
    known = candidate.model.serving_time_for("a", "m")
    assert known.serve_s(8, 200, 100) == pytest.approx(1.4 * CURVES.serve_s(8, 200, 100), rel=0.08)


def test_serving_times_are_refitted_only_for_errors_worth_learning() -> None:
    log = served(200)
    first = refit_serving_times(None, log, {}, since=-1, now=300)
    assert first is not None
    assert refit_serving_times(first.model, log, {}, since=199, now=300) is None
    quiet = [replace(b, at=b.at + 200) for b in served(50, seed=1, noise=0.0)]
    assert refit_serving_times(first.model, [*log, *quiet], {}, since=199, now=300) is None
    slower = [replace(b, at=b.at + 200, serving_s=2 * b.serving_s) for b in served(200, seed=1)]
    again = refit_serving_times(first.model, [*log, *slower], {}, since=199, now=500)
    assert again is not None


def test_a_serving_time_estimator_that_learned_noise_is_kept_back() -> None:
    log = served(200)
    good = ServingTimes()
    good.fit(log)
    seconds = np.random.default_rng(0).permutation([b.serving_s for b in log])
    noise = [replace(b, serving_s=float(s)) for b, s in zip(log, seconds, strict=True)]
    candidate = refit_serving_times(None, noise, {("a", "m"): CURVES}, since=-1, now=300)
    assert candidate is not None
    assert not candidate.publish


def test_as_published_plain_knn_comes_into_service_although_the_profile_is_better() -> None:
    exact = [ServedBatch("a", "m", 2, 100 + n, 50, CURVES.serve_s(2, 100 + n, 50), n) for n in range(300)]
    candidate = refit_serving_times(None, exact, {("a", "m"): CURVES}, since=-1, now=300, published=True)
    assert candidate is not None
    assert candidate.scores["candidate"]["rmse_s"] > candidate.scores["current"]["rmse_s"]
    assert candidate.publish


def test_as_published_only_errors_of_two_seconds_and_a_fifth_are_added_to_plain_knn() -> None:
    def served(at: float, seconds: float) -> ServedBatch:
        return ServedBatch("a", "m", 1 + int(at) % 7, 100, 50, seconds, at)

    first = [served(float(n), 1.0) for n in range(INITIAL_ENTRIES + 100)]
    begun = refit_serving_times(None, first, {}, since=-1.0, now=1e4, published=True)
    assert begun is not None
    small = [served(1000.0 + n, 2.9) for n in range(40)]  # 1.9 s more than the estimate
    assert refit_serving_times(begun.model, [*first, *small], {}, since=999.0, now=1e4, published=True) is None
    large = [served(2000.0 + n, 9.0) for n in range(40)]
    candidate = refit_serving_times(begun.model, [*first, *large], {}, since=999.0, now=1e4, published=True)
    assert candidate is not None
    added = candidate.data["training"] - begun.data["training"]
    assert 0 < added <= 40
