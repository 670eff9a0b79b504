"""The kernel ridge: its weights, and its leave-one-out predictions in closed form."""

import numpy as np
import pytest

from learning.estimators.regressions import (
    PENALTY,
    fit_log_regression,
    fit_ridge,
    fit_robust_regression,
)
from learning.features.text_vectors import hash_texts


def test_leave_one_out_predictions_are_those_of_a_ridge_without_the_row() -> None:
    rows = hash_texts([f"word{i % 7} other{i % 3} {i}" for i in range(30)]).toarray()
    targets = np.random.default_rng(0).normal(size=30)
    _, left_out = fit_ridge(rows @ rows.T, targets)
    centred = rows - rows.mean(axis=0)
    mean = targets.mean()
    others = np.arange(30) != 4
    gram = centred[others] @ centred[others].T + PENALTY * np.eye(29)
    expected = centred[4] @ centred[others].T @ np.linalg.solve(gram, (targets - mean)[others]) + mean
    assert left_out[4] == pytest.approx(expected, abs=1e-4)


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


def test_the_left_out_error_is_that_of_a_regression_without_the_answer() -> None:
    rng = np.random.default_rng(0)
    names = ["a", "b"] * 10
    inputs = np.full(20, 8.0)  # of one length, so that leaving one out does not move the centre
    lengths = rng.integers(5, 50, 20).astype(float)
    _, missed = fit_log_regression(names, inputs, lengths)
    without, _ = fit_log_regression(names[1:], inputs[1:], lengths[1:])
    assert missed[0] == pytest.approx(np.log(lengths[0]) - without.predict(names[:1], inputs[:1])[0])
