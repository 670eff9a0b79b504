"""Serving time: SCLS's curves by least squares, the nearest served batches on top, per worker and model."""

import numpy as np
import pytest

from learning.estimators.cost_curves import ROUGH, fit_batches, fit_curves
from learning.serving_time import KnnServingTime, ServedBatch, ServingTimes
from learning.store import digest, dump, load
from scheduling.costs import ServingCurves, ServingTime

CURVES = ServingCurves((2e-5, 1e-4, 1e-6, 0.01), (2e-8, 3e-4, 1e-6, 0.02))


def batches(n: int, factor: float = 1.0, worker: str = "a") -> list[ServedBatch]:
    chance = np.random.default_rng(0)
    served = []
    for i in range(n):
        size, length, generation_length = (int(chance.integers(1, top)) for top in (20, 500, 300))
        seconds = factor * CURVES.serve_s(size, length, generation_length)
        served.append(ServedBatch(worker, "m", size, length, generation_length, seconds, float(i)))
    return served


def test_curves_are_found_again_from_measured_phases() -> None:
    sizes, tokens = [1, 2, 8, 32, 1, 2, 8, 32, 4], [10, 10, 10, 10, 500, 500, 500, 500, 200]
    shapes = list(zip(sizes, tokens, strict=True))
    fitted = fit_curves(
        [(n, i, CURVES.prefill_s(n, i)) for n, i in shapes], [(n, i, CURVES.decode_step_s(n, i)) for n, i in shapes]
    )
    assert fitted.prefill == pytest.approx(CURVES.prefill, rel=1e-3)
    assert fitted.decode == pytest.approx(CURVES.decode, rel=1e-3)


def test_curves_are_found_again_from_whole_batches() -> None:
    fitted = fit_batches([(b.size, b.length, b.generation_length, b.serving_s) for b in batches(100)])
    for shape in ((1, 10, 10), (16, 400, 300), (8, 800, 1000)):
        assert fitted.serve_s(*shape) == pytest.approx(CURVES.serve_s(*shape), rel=0.02)


def test_more_work_never_takes_less_time_by_fitted_curves() -> None:
    chance = np.random.default_rng(1)
    noisy = [(b.size, b.length, b.generation_length, b.serving_s * float(chance.uniform(0.3, 3))) for b in batches(50)]
    fitted = fit_batches(noisy)
    assert min(*fitted.prefill, *fitted.decode) >= 0


def test_without_batches_the_profile_answers_and_without_a_profile_a_rough_default() -> None:
    assert KnnServingTime(CURVES).serve_s(4, 100, 50) == pytest.approx(CURVES.serve_s(4, 100, 50))
    assert ServingTimes().of("new", "m", CURVES).serve_s(4, 100, 50) == pytest.approx(CURVES.serve_s(4, 100, 50))
    assert ServingTimes().of("new", "m").serve_s(4, 100, 50) == pytest.approx(ROUGH.serve_s(4, 100, 50))


def test_near_served_batches_correct_the_curves_fully_and_far_from_them_as_far_as_many_agree() -> None:
    estimator = KnnServingTime()
    twice = 2 * CURVES.serve_s(4, 100, 50)
    estimator.fit([ServedBatch("a", "m", 4, 100, 50, twice, float(i)) for i in range(5)], CURVES)
    assert estimator.serve_s(4, 100, 50) == pytest.approx(twice, rel=1e-6)
    far = estimator.serve_s(40, 900, 900) / CURVES.serve_s(40, 900, 900)
    assert far == pytest.approx(2 ** (5 / 15), rel=0.01)  # five batches against a doubt of ten


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
        assert again.of(worker, "m").serve_s(8, 200, 100) == times.of(worker, "m").serve_s(8, 200, 100)
    ratio = again.of("slow", "m").serve_s(8, 200, 100) / again.of("a", "m").serve_s(8, 200, 100)
    assert ratio == pytest.approx(3, rel=0.1)
    assert again.of("a", "m") is again.of("a", "m")  # policies keep tables by the object


def test_a_worker_that_served_nothing_yet_is_stored_as_nothing() -> None:
    stored = dump(ServingTimes())
    assert load(stored, digest(stored)).estimators == {}
