"""The regression of answer lengths on input lengths, and its spread."""

import numpy as np
import pytest

from learning.estimators.robust_regression import fit_robust_regression


def test_the_line_is_not_tilted_by_a_few_answers() -> None:
    inputs = np.arange(1.0, 101.0)
    lengths = 2 * inputs + 5
    lengths[[3, 50, 97]] = 5000
    line = fit_robust_regression(inputs, lengths)
    assert (line.slope, line.intercept) == pytest.approx((2, 5), abs=0.1)


def test_the_line_is_not_extrapolated_far_beyond_the_longest_input() -> None:
    inputs = np.arange(1.0, 101.0)
    line = fit_robust_regression(inputs, 3 * inputs)
    assert line.predict(np.array([10_000.0]))[0] == pytest.approx(3 * 1.5 * np.quantile(inputs, 0.99), rel=0.01)


def test_spread_grows_with_the_input_where_errors_do() -> None:
    rng = np.random.default_rng(0)
    inputs = rng.uniform(1, 100, 2000)
    line = fit_robust_regression(inputs, inputs + 0.2 * inputs * rng.normal(size=2000))
    near, far = line.spread(np.array([10.0, 90.0]))
    assert far / near == pytest.approx(9, rel=0.5)
