"""What alike workers learn is put together; what truly differs is kept."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from learning.pooled_curves import pooled_curves
from learning.step_costs import StepCosts, StepWindow, typical_iteration
from scheduling.costs import LearnedCurves, ServingCurves

PREFILL = (1e-3, 0.0, 0.0, 0.03)
TYPICAL = (20.0, 100.0)
LONG_ROWS = (20.0, 400.0)


def learned(decode: tuple[float, float, float, float], error: float = 0.15, windows: int = 100) -> LearnedCurves:
    return LearnedCurves(ServingCurves(PREFILL, decode), error, windows, 1, TYPICAL)


def test_workers_that_take_as_long_share_their_curves_so_that_long_rows_cost_the_same_on_each():
    by_tokens, by_steps = learned((6e-6, 0.0, 0.0, 9e-3)), learned((1e-6, 0.0, 0.0, 19e-3))
    assert by_tokens.curves.decode_step_s(*TYPICAL) == pytest.approx(by_steps.curves.decode_step_s(*TYPICAL))
    together = pooled_curves({"a": by_tokens, "b": by_steps})
    assert together["a"] == together["b"]
    assert together["a"].decode_step_s(*LONG_ROWS) == pytest.approx(
        (by_tokens.curves.decode_step_s(*LONG_ROWS) + by_steps.curves.decode_step_s(*LONG_ROWS)) / 2
    )


def test_a_worker_that_is_slower_by_more_than_its_error_stays_slower():
    fast, slow = learned((0.0, 0.0, 0.0, 10e-3), error=0.03), learned((0.0, 0.0, 0.0, 30e-3), error=0.03)
    together = pooled_curves({"fast": fast, "slow": slow})
    for name, one in {"fast": fast, "slow": slow}.items():
        assert together[name].decode_step_s(*TYPICAL) == pytest.approx(one.curves.decode_step_s(*TYPICAL), rel=0.02)


def test_workers_count_by_the_windows_that_they_learned_from():
    new, old = learned((0.0, 0.0, 0.0, 12e-3), windows=10), learned((0.0, 0.0, 0.0, 11e-3), windows=90)
    assert pooled_curves({"new": new, "old": old})["new"].decode[3] == pytest.approx(11.1e-3)


@given(st.lists(st.tuples(st.floats(1e-4, 1.0), st.floats(0.0, 1.0), st.integers(1, 768)), min_size=1, max_size=8))
def test_no_worker_is_planned_with_less_or_more_than_any_has_measured(workers):
    found = {
        str(n): learned((0.0, 0.0, 0.0, step_s), error, windows) for n, (step_s, error, windows) in enumerate(workers)
    }
    steps = [one.decode[3] for one in pooled_curves(found).values()]
    assert min(step_s for step_s, _, _ in workers) * (1 - 1e-9) <= min(steps)
    assert max(steps) <= max(step_s for step_s, _, _ in workers) * (1 + 1e-9)


def test_one_worker_keeps_what_it_learned_and_none_is_nothing():
    alone = learned((1e-6, 2e-4, 0.0, 9e-3))
    assert np.allclose(pooled_curves({"a": alone})["a"].decode, alone.curves.decode)
    assert pooled_curves({}) == {}


def test_the_typical_iteration_is_the_median_one():
    costs = StepCosts()
    costs.add(StepWindow(0.1, float(n), row_reads=8000, row_steps=80, reads=1000, steps=10) for n in range(20))
    found = costs.refit()
    assert found is not None
    assert found.typical == (8.0, 100.0)


@pytest.mark.parametrize(
    "window",
    [
        StepWindow(0.1, 0.0, prefilled_tokens=64, prefilled_rows=1),
        StepWindow(0.1, 0.0, row_steps=4, steps=8),  # a server that does not say how many tokens it holds
    ],
)
def test_a_typical_iteration_has_a_row_and_a_token_so_that_it_takes_time(window: StepWindow):
    assert typical_iteration([window]) == (1.0, 1.0)
