"""Serving times: the curves, corrected by the nearest served batches, per worker and model."""

import numpy as np
import pytest

from learning.estimators.cost_curves import DEFAULT_CURVES
from learning.estimators.serving_time import KnnServingTime, ServingTimes
from learning.store import digest, dump, load
from scheduling.costs import ServedBatch, ServingCurves, ServingTime

CURVES = ServingCurves((2e-5, 1e-4, 1e-6, 0.01), (2e-8, 3e-4, 1e-6, 0.02))


def batches(n: int, factor: float = 1.0, worker: str = "a") -> list[ServedBatch]:
    chance = np.random.default_rng(0)
    served = []
    for i in range(n):
        size, length, generation_length = (int(chance.integers(1, top)) for top in (20, 500, 300))
        seconds = factor * CURVES.serve_s(size, length, generation_length)
        served.append(ServedBatch(worker, "m", size, length, generation_length, seconds, float(i)))
    return served


def test_without_batches_the_profile_answers_and_without_a_profile_a_rough_default() -> None:
    assert KnnServingTime(CURVES).serve_s(4, 100, 50) == pytest.approx(CURVES.serve_s(4, 100, 50))
    for profile, curves in ((CURVES, CURVES), (None, DEFAULT_CURVES)):
        estimator = ServingTimes().serving_time_for("new", "m", profile)
        assert estimator.serve_s(4, 100, 50) == pytest.approx(curves.serve_s(4, 100, 50))


def test_near_served_batches_correct_the_curves_fully_and_far_from_them_as_far_as_many_agree() -> None:
    estimator = KnnServingTime()
    twice = 2 * CURVES.serve_s(4, 100, 50)
    estimator.fit([ServedBatch("a", "m", 4, 100, 50, twice, float(i)) for i in range(5)], CURVES)
    assert estimator.serve_s(4, 100, 50) == pytest.approx(twice, rel=1e-6)
    far = estimator.serve_s(40, 900, 900) / CURVES.serve_s(40, 900, 900)
    assert far == pytest.approx(2 ** (5 / 15), rel=0.01)  # five batches against ten of the prior


def test_many_batches_at_once_are_estimated_like_one_by_one() -> None:
    estimator: ServingTime = KnnServingTime(CURVES)
    assert isinstance(estimator, KnnServingTime)
    estimator.fit(batches(60), CURVES)
    shapes = [(1, 5, 7), (8, 300, 200), (500, 9, 9)]
    many = estimator.serve_many_s(*(np.array(column) for column in zip(*shapes, strict=True)))
    assert many == pytest.approx([estimator.serve_s(*shape) for shape in shapes])


def test_workers_are_told_apart_and_survive_the_store() -> None:
    times = ServingTimes()
    times.fit([*batches(60), *batches(60, factor=3, worker="slow")], {("a", "m"): CURVES})
    stored = dump(times)
    again = load(stored, digest(stored))
    for worker in ("a", "slow"):
        stored_s, fitted_s = (one.serving_time_for(worker, "m").serve_s(8, 200, 100) for one in (again, times))
        assert stored_s == fitted_s
    slow_s, fast_s = (again.serving_time_for(worker, "m").serve_s(8, 200, 100) for worker in ("slow", "a"))
    assert slow_s / fast_s == pytest.approx(3, rel=0.1)
    assert again.serving_time_for("a", "m") is again.serving_time_for("a", "m")  # policies keep tables by the object


def test_to_a_plain_estimator_some_rows_more_are_as_far_as_some_hundred_tokens() -> None:
    alike = [(size, length, 500) for size in (2, 40) for length in (100, 300, 500, 700, 900)]
    times = ServingTimes(plain=True)
    times.fit([ServedBatch("a", "m", *shape, serving_s=float(shape[0])) for shape in alike])
    # by raw distances, batches of both sizes and of 300 to 700 tokens would be nearest
    assert times.serving_time_for("a", "m").serve_s(40, 500, 500) == pytest.approx(40)
    assert times.serving_time_for("a", "m").serve_s(2, 500, 500) == pytest.approx(2)


def test_a_plain_estimator_is_the_mean_of_the_five_nearest_batches_whatever_the_curves_say() -> None:
    times = ServingTimes(plain=True)
    served = [ServedBatch("a", "m", size, 100, 50, float(size)) for size in (1, 2, 3, 4, 5, 60)]
    times.fit(served, {("a", "m"): CURVES})
    restored = load(stored := dump(times), digest(stored))
    for each in (times, restored):
        estimator = each.serving_time_for("a", "m")
        assert estimator.serve_s(1, 100, 50) == pytest.approx(3.0)  # (1 + 2 + 3 + 4 + 5) / 5
        assert estimator.serve_s(60, 100, 50) == pytest.approx((60 + 5 + 4 + 3 + 2) / 5)
    assert ServingTimes(plain=True).serving_time_for("new", "m", CURVES).serve_s(4, 100, 50) == pytest.approx(
        CURVES.serve_s(4, 100, 50)
    )
