import pytest

from models.registered_workers import RegisteredWorker
from scheduling.costs import LearnedCurves, ProfiledCurves, ServingCurves, WorkerCurves
from scheduling.kv_memory import KvMemory
from scheduling.worker_facts import WorkerFacts
from tasks.planning.serving_estimates import ServingEstimates

PREFILL = (0.0, 0.0, 0.0, 1.0)
PROFILE = ProfiledCurves(ServingCurves(PREFILL, (0.0, 0.0, 0.0, 0.5)))
SLOWER = ProfiledCurves(ServingCurves(PREFILL, (0.0, 0.0, 0.0, 0.7)))


def worker(curves: WorkerCurves | None = PROFILE, name: str = "w1") -> RegisteredWorker:
    return RegisteredWorker(WorkerFacts(name, "small", "cpu", KvMemory(1000, 1), curves))


def test_until_something_was_learned_a_workers_own_profile_estimates():
    # 1 s for the prefill and 0.5 s for each of 4 iterations
    assert ServingEstimates().serving_time_for(worker()).serve_s(2, 10, 4) == 1.0 + 4 * 0.5


def test_a_worker_keeps_its_estimator_until_its_profile_changes():
    estimates = ServingEstimates()
    first = estimates.serving_time_for(worker())
    assert estimates.serving_time_for(worker()) is first
    assert estimates.serving_time_for(worker(SLOWER)) is not first


def test_where_rows_join_a_workers_own_curves_count_and_they_are_followed_as_it_learns():
    estimates = ServingEstimates()
    assert estimates.serving_time_for(worker(), joins=True) == PROFILE.curves
    assert estimates.serving_time_for(worker(SLOWER), joins=True) == SLOWER.curves
    assert estimates.serving_time_for(worker(None), joins=True).serve_s(1, 10, 4) > 0


def test_where_rows_join_alike_workers_are_planned_with_what_they_learned_together():
    def learned(name: str, step_s: float, version: int = 1) -> RegisteredWorker:
        curves = ServingCurves(PREFILL, (0.0, 0.0, 0.0, step_s))
        return worker(LearnedCurves(curves, error=0.2, windows=10, version=version, typical=(4.0, 20.0)), name)

    estimates, first, second = ServingEstimates(), learned("w1", 0.5), learned("w2", 0.6)
    estimates.pool([first, second])
    together = estimates.serving_time_for(first, joins=True)
    assert estimates.serving_time_for(second, joins=True) == together
    assert together.serve_s(2, 10, 4) == pytest.approx(1.0 + 4 * 0.55)
    assert estimates.serving_time_for(first).serve_s(1, 10, 4) == 1.0 + 4 * 0.5  # whole batches: its own
    estimates.pool([first, second])
    assert estimates.serving_time_for(first, joins=True) is together  # nothing has changed
    estimates.pool([first, learned("w2", 0.4, version=2)])
    assert estimates.serving_time_for(first, joins=True) != together
    estimates.pool([first])
    assert first.curves is not None
    assert estimates.serving_time_for(first, joins=True) == first.curves.curves
