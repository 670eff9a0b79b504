from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from learning.estimators.cost_curves import ROW_TOKENS
from learning.step_costs import (
    FEWEST_WINDOWS,
    KEPT_OF_A_KIND,
    StepCosts,
    fit_steps,
    median_error,
    pooled_curves,
    typical_iteration,
)
from scheduling.costs import LearnedCurves, ServingCurves, StepWindow

TOY = ServingCurves((1e-5, 0.0, 0.0, 1e-3), (2e-8, 7e-5, 0.0, 1.2e-3))
REAL = ServingCurves((1e-3, 0.0, 0.0, 0.03), (4e-6, 1.5e-3, 0.0, 0.048))
SIZES, LENGTHS = (1, 2, 4, 7, 12, 16, 24, 32), (20, 60, 150, 400)


def decoding(rows: int, cached: int, steps: int = 8, at: float = 0.0) -> StepWindow:
    return StepWindow(
        1.0, at, row_reads=steps * rows * cached, row_steps=steps * rows, reads=steps * cached, steps=steps
    )


def prefill(rows: int, length: int, at: float = 0.0) -> StepWindow:
    return StepWindow(
        1.0, at, prefilled_tokens=rows * length, prefilled_rows=rows, prefilled_lengths=length, prefills=1
    )


def timed(window: StepWindow, curves: ServingCurves, factor: float = 1.0) -> StepWindow:
    """The window as an engine of these curves would have taken it, times a factor."""
    return replace(window, seconds=factor * float(np.dot(window.sums, [*curves.prefill, *curves.decode])))


def shapes(seed: int, count: int) -> list[StepWindow]:
    rng = np.random.default_rng(seed)
    make: tuple[Callable[..., StepWindow], ...] = (decoding, prefill)
    kinds = rng.random(count) < 0.3
    return [
        make[int(kind)](int(rng.choice(SIZES)), int(rng.choice(LENGTHS)), at=float(n)) for n, kind in enumerate(kinds)
    ]


def relative_errors(fitted: ServingCurves, true: ServingCurves) -> np.ndarray:
    """Relative errors of the fitted curves' steps and prefills, for every size and length."""
    pairs = [(size, length) for size in SIZES for length in LENGTHS]
    steps = [fitted.decode_step_s(*pair) / true.decode_step_s(*pair) - 1 for pair in pairs]
    return np.abs([*steps, *(fitted.prefill_s(*pair) / true.prefill_s(*pair) - 1 for pair in pairs)])


@settings(max_examples=20, deadline=None)
@example(319, 0.03125, 0.001953125, 0.0, 1e-05, 0.046875)  # short prefills cost as much as long ones, unlike in TOY
@given(
    st.integers(0, 10_000),
    st.floats(1e-4, 0.05),
    st.floats(1e-6, 2e-3),
    st.floats(0.0, 5e-6),
    st.floats(1e-5, 2e-3),
    st.floats(5e-4, 0.05),
)
def test_true_costs_are_recovered_within_five_percent_although_a_tenth_of_the_windows_took_much_longer(
    seed: int, step_s: float, row_s: float, read_s: float, prefill_token_s: float, prefill_s: float
) -> None:
    fixed_s = step_s + row_s + ROW_TOKENS * read_s  # at least what a row adds
    true = ServingCurves((prefill_token_s, 0.0, 0.0, prefill_s), (read_s, row_s, 0.0, fixed_s))
    rng = np.random.default_rng(seed)
    windows = [
        timed(window, true, float(rng.normal(1, 0.02) * (rng.uniform(2, 10) if rng.random() < 0.1 else 1)))
        for window in shapes(seed, 300)
    ]
    fitted = fit_steps(windows, windows[-64:], TOY)
    errors = relative_errors(fitted, true)
    assert np.median(errors) < 0.05
    assert np.quantile(errors, 0.9) < 0.1


def test_windows_of_one_row_never_teach_that_a_batch_saves_nothing() -> None:
    # what a worker measured on a busy machine and learned from batches of one request
    collapsed = ServingCurves((0.000312, 0.0076, 0.0, 0.0), (4.16e-05, 0.00669, 0.0, 0.0))
    windows = [timed(decoding(1, cached, at=float(n)), collapsed) for n, cached in enumerate(LENGTHS * 10)]
    learned = StepCosts(collapsed)
    learned.add([*windows, *(timed(prefill(1, length, at=40.0), collapsed) for length in LENGTHS * 4)])
    in_service = learned.refit()
    fitted = in_service.curves if in_service else fit_steps(windows, windows, collapsed)
    for curves in (fitted, fit_steps(windows, windows, collapsed)):
        one_row_s, ten_rows_s = curves.decode_step_s(1, 60), curves.decode_step_s(10, 60)
        assert one_row_s == pytest.approx(collapsed.decode_step_s(1, 60), rel=0.2)
        assert ten_rows_s < 0.6 * 10 * one_row_s


def test_nothing_is_learned_from_too_few_windows() -> None:
    costs = StepCosts(TOY)
    costs.add(timed(window, REAL) for window in shapes(0, FEWEST_WINDOWS - 1))
    assert costs.refit() is None


def test_a_first_second_at_one_load_already_sets_the_level_of_all_loads() -> None:
    costs = StepCosts(TOY)
    twice = ServingCurves((2e-5, 0.0, 0.0, 2e-3), (4e-8, 1.4e-4, 0.0, 2.4e-3))
    costs.add(timed(decoding(4, 60, at=float(n)), twice) for n in range(FEWEST_WINDOWS))
    learned = costs.refit()
    assert learned is not None
    for rows in (1, 4, 16):
        assert learned.curves.decode_step_s(rows, 60) == pytest.approx(twice.decode_step_s(rows, 60), rel=0.1)


def test_a_machine_that_becomes_slower_is_followed_and_what_was_seen_of_other_loads_is_kept() -> None:
    costs = StepCosts(TOY)
    costs.add(timed(window, REAL) for window in shapes(1, 300))
    costs.refit()
    slower = [timed(decoding(7, 150, at=400.0 + n), REAL, 1.5) for n in range(80)]
    costs.add(slower)
    learned = costs.refit()
    assert learned is not None
    assert learned.version == 2
    assert median_error(learned.curves, slower) < 0.02
    assert learned.curves.decode_step_s(32, 150) == pytest.approx(1.5 * REAL.decode_step_s(32, 150), rel=0.1)


def test_a_fit_that_gains_next_to_nothing_does_not_replace_the_one_in_service() -> None:
    costs = StepCosts(TOY)
    rng = np.random.default_rng(0)
    costs.add(timed(window, REAL, float(rng.normal(1, 0.03))) for window in shapes(1, 300))
    first = costs.refit()
    costs.add(timed(window, REAL, float(rng.normal(1, 0.03))) for window in shapes(2, 300))
    assert costs.refit() is first
    assert costs.refit() is first  # and without new windows nothing is fitted at all


def test_profiled_costs_stay_in_service_while_they_are_right() -> None:
    costs = StepCosts(REAL)
    costs.add(timed(window, REAL) for window in shapes(3, 100))
    assert costs.refit() is None


def test_windows_of_each_kind_are_bounded_and_those_of_no_work_are_ignored() -> None:
    costs = StepCosts(TOY)
    costs.add(timed(decoding(4, 60, at=float(n)), REAL) for n in range(10 * KEPT_OF_A_KIND))
    costs.add([StepWindow(1.0, 0.0), replace(decoding(1, 1), seconds=0.0)])
    learned = costs.refit()
    assert learned is not None
    assert learned.windows == KEPT_OF_A_KIND


def test_many_kinds_are_forgotten_from_the_one_that_was_seen_longest_ago() -> None:
    costs = StepCosts(TOY)
    for power in range(40):
        costs.add([timed(decoding(1, 2**power), REAL)])
    learned = costs.refit()
    assert learned is not None
    assert learned.windows <= 32


def test_a_server_that_prefills_beside_decoding_is_learned_from_mixed_windows() -> None:
    true = ServingCurves((1e-4, 0.0, 0.0, 0.0), (1e-6, 1e-3, 0.0, 0.02))
    rng = np.random.default_rng(0)
    windows = [
        timed(
            replace(decoding(rows, cached, at=float(n)), reads=0.0, prefilled_tokens=float(rng.choice([0, 100, 500]))),
            true,
        )
        for n, (rows, cached) in enumerate(zip(rng.choice(SIZES, 200), rng.choice(LENGTHS, 200), strict=True))
    ]
    fitted = fit_steps(windows, windows[-64:], TOY)
    assert fitted.prefill[0] == pytest.approx(1e-4, rel=0.1)
    assert fitted.decode_step_s(16, 150) == pytest.approx(true.decode_step_s(16, 150), rel=0.05)


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
