"""SCLS's curves, fitted to measured phases and to whole batches."""

import numpy as np
import pytest

from learning.estimators.cost_curves import ROW_TOKENS, fit_curves, fit_curves_to_batches
from scheduling.costs import ServingCurves

CURVES = ServingCurves((2e-5, 1e-4, 1e-6, 0.01), (2e-8, 3e-4, 1e-6, 0.02))


def batches(n: int) -> list[tuple[int, int, int, float]]:
    """Batches of random shapes that take what the curves say."""
    rng = np.random.default_rng(0)
    drawn = []
    for _ in range(n):
        size, length, generation_length = (int(rng.integers(1, top)) for top in (20, 500, 300))
        drawn.append((size, length, generation_length, CURVES.serve_s(size, length, generation_length)))
    return drawn


def test_curves_are_found_again_from_measured_phases() -> None:
    sizes, tokens = [1, 2, 8, 32, 1, 2, 8, 32, 4], [10, 10, 10, 10, 500, 500, 500, 500, 200]
    shapes = list(zip(sizes, tokens, strict=True))
    fitted = fit_curves(
        [(n, i, CURVES.prefill_s(n, i)) for n, i in shapes], [(n, i, CURVES.decode_step_s(n, i)) for n, i in shapes]
    )
    assert fitted.prefill == pytest.approx(CURVES.prefill, rel=1e-3)
    assert fitted.decode == pytest.approx(CURVES.decode, rel=1e-3)


def test_curves_are_found_again_from_whole_batches() -> None:
    fitted = fit_curves_to_batches(batches(100))
    for shape in ((1, 10, 10), (16, 400, 300), (8, 800, 1000)):
        assert fitted.serve_s(*shape) == pytest.approx(CURVES.serve_s(*shape), rel=0.02)


def test_more_work_never_takes_less_time_by_fitted_curves() -> None:
    rng = np.random.default_rng(1)
    noisy = [(n, i, g, seconds * float(rng.uniform(0.3, 3))) for n, i, g, seconds in batches(50)]
    fitted = fit_curves_to_batches(noisy)
    assert min(*fitted.prefill, *fitted.decode) >= 0


def test_a_row_adds_at_most_the_fixed_cost_however_much_slower_a_loaded_machine_made_large_batches() -> None:
    shapes = [(size, length) for size in (1, 4, 16) for length in (16, 128)]
    fitted = fit_curves(
        [(n, i, n**2 * CURVES.prefill_s(n, i)) for n, i in shapes],
        [(n, i, n**2 * CURVES.decode_step_s(n, i)) for n, i in shapes],
    )
    d1, d2, d3, d4 = fitted.decode
    assert d4 >= d2 + ROW_TOKENS * (d1 + d3) > 0
    assert fitted.prefill[3] >= fitted.prefill[1]
