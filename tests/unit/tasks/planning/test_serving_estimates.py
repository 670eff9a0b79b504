from typing import Any

from models.planning.live_fleet import LiveWorker
from scheduling.costs import ServingCurves
from tasks.planning.serving_estimates import ServingEstimates, measured_curves

PROFILE = {"prefill": [0.0, 0.0, 0.0, 1.0], "decode": [0.0, 0.0, 0.0, 0.5]}


def worker(curves: dict[str, Any] | None = PROFILE) -> LiveWorker:
    return LiveWorker("w1", "small", 1000, 1, curves)


def test_a_profile_becomes_curves():
    assert measured_curves(worker()) == ServingCurves((0.0, 0.0, 0.0, 1.0), (0.0, 0.0, 0.0, 0.5))
    assert measured_curves(worker(None)) is None


def test_until_something_was_learned_a_workers_own_profile_estimates():
    # 1 s for the prefill and 0.5 s for each of 4 iterations
    assert ServingEstimates().of(worker()).serve_s(2, 10, 4) == 1.0 + 4 * 0.5


def test_a_worker_keeps_its_estimator_until_its_profile_changes():
    estimates = ServingEstimates()
    first = estimates.of(worker())
    assert estimates.of(worker()) is first
    assert estimates.of(worker(PROFILE | {"decode": [0.0, 0.0, 0.0, 0.7]})) is not first


def test_where_rows_join_a_workers_own_curves_count_and_they_are_followed_as_it_learns():
    estimates = ServingEstimates()
    assert estimates.of(worker(), joins=True) == measured_curves(worker())
    learned = PROFILE | {"decode": [0.0, 0.0, 0.0, 0.7]}
    assert estimates.of(worker(learned), joins=True) == measured_curves(worker(learned))
    assert estimates.of(worker(None), joins=True).serve_s(1, 10, 4) > 0
