import numpy as np
import pytest

from scheduling.costs import Floats, Ints, ServingCurves
from scheduling.linearized_costs import linearized
from tests.unit.scheduling.scheduling_builders import SLOPED

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
