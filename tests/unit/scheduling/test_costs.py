""" """

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.costs import Floats, Ints, ServingCurves, StepWindow, linearized
from tests.unit.scheduling.scheduling_builders import SLOPED, examples

CURVES = ServingCurves(prefill=(0.001, 0.01, 0.002, 0.5), decode=(0.0001, 0.002, 0.0003, 0.05))


def test_serving_time_is_prefill_and_the_sum_over_iterations() -> None:
    # Eq. (3), N = 2, L = 10: 0.001·20 + 0.01·2 + 0.002·10 + 0.5 = 0.56
    assert CURVES.prefill_s(2, 10) == pytest.approx(0.56)
    # Eq. (4) at l = 11, 12, 13: 0.0002·l + 0.004 + 0.0003·l + 0.05 = 0.054 + 0.0005·l; the sum is 0.162 + 0.018 = 0.18
    assert CURVES.serve_s(2, 10, 3) == pytest.approx(0.56 + 0.18)


@examples(20)
@given(st.lists(st.tuples(st.integers(1, 64), st.integers(1, 2048), st.integers(1, 2048)), max_size=20))
def test_many_batches_are_estimated_as_one_by_one(batches: list[tuple[int, int, int]]) -> None:
    sizes, lengths, generations = np.array(batches, dtype=np.int64).reshape(-1, 3).T
    one_by_one = [CURVES.serve_s(*batch) for batch in batches]
    assert CURVES.serve_many_s(sizes, lengths, generations) == pytest.approx(one_by_one)


def test_a_fitted_curve_never_gives_a_negative_time() -> None:
    falling = ServingCurves((0.0, 0.0, 0.0, -1.0), (0.0, 0.0, 0.0, -1.0))
    assert falling.serve_s(1, 1, 5) == 0.0
    ones = np.ones(1, dtype=np.int64)
    assert falling.serve_many_s(ones, ones, ones)[0] == 0.0


FULL = ServingCurves(prefill=(2e-4, 1e-3, 1e-5, 0.04), decode=(3e-6, 8e-4, 2e-6, 0.05))


class Estimator:
    """Estimates as the curves do, without saying so."""

    def __init__(self, curves: ServingCurves, offset_s: float = 0.0) -> None:
        self._curves, self._offset_s = curves, offset_s

    def serve_s(self, size: int, length: int, generation_length: int) -> float:
        return self._curves.serve_s(size, length, generation_length) + self._offset_s

    def serve_many_s(self, sizes: Ints, lengths: Ints, generation_lengths: Ints) -> Floats:
        return self._curves.serve_many_s(sizes, lengths, generation_lengths) + self._offset_s


def test_curves_are_their_own() -> None:
    assert linearized(SLOPED) == SLOPED


def test_the_curves_of_a_linear_estimator_are_found_again() -> None:
    curves = linearized(Estimator(FULL))
    assert np.array([curves.prefill, curves.decode]) == pytest.approx(np.array([FULL.prefill, FULL.decode]))


def test_no_coefficient_is_negative() -> None:
    curves = linearized(Estimator(SLOPED, offset_s=-1.0))
    assert min(*curves.prefill, *curves.decode) == 0.0
    assert curves.decode == pytest.approx(SLOPED.decode)


def test_steps_are_of_one_kind_if_rows_and_tokens_are_of_one_power_of_two() -> None:
    steps = StepWindow(1.0, 0.0, row_reads=3 * 5 * 100, row_steps=3 * 5, reads=3 * 100, steps=3)
    prefill = StepWindow(1.0, 0.0, prefilled_tokens=5 * 100, prefilled_rows=5, prefilled_lengths=100, prefills=1)
    joined = StepWindow(1.0, 0.0, prefilled_tokens=40, row_reads=3 * 5 * 100, row_steps=3 * 5, reads=3 * 100, steps=3)
    assert (steps.kind, prefill.kind, joined.kind) == ((3, 7, False), (3, 7, True), (3, 7, True))
    assert joined.sums == (40, 0, 0, 0, 1500, 15, 300, 3)
