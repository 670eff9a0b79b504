"""The kernel ridge: its weights, and its leave-one-out predictions in closed form."""

import numpy as np
import pytest

from learning.estimators.regressions import (
    NO_ANSWERS,
    PENALTY,
    LogRegression,
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


def test_dual_weights_sum_to_nothing_and_give_the_fitted_values() -> None:
    rows = hash_texts([f"word{i % 5}" for i in range(40)]).toarray().astype(np.float64)
    targets = np.array([float(i % 5) for i in range(40)])
    dual, _ = fit_ridge(rows @ rows.T, targets)
    assert dual.sum() == pytest.approx(0, abs=1e-6)
    assert np.corrcoef(rows @ (rows.T @ dual), targets)[0, 1] > 0.99


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


def test_without_answers_the_input_length_is_predicted() -> None:
    regression, missed = fit_log_regression([], np.zeros(0), np.zeros(0))
    assert np.exp(regression.predict(["a", "b"], np.array([7.0, 0.0]))) == pytest.approx([7, 1])
    assert len(missed) == 0


def test_one_answer_moves_the_offset_by_all_but_the_priors_share() -> None:
    regression, _ = fit_log_regression(["a"], np.array([4.0]), np.array([40.0]))
    # ln 10 · 1 / (1 + 0.1) = 2.0933, and 4 · e^2.0933 = 32.4
    assert np.exp(regression.predict(["other"], np.array([4.0]))) == pytest.approx([32.44], rel=1e-3)


def test_three_answers_give_an_application_terms_of_its_own() -> None:
    names = ["long"] * 3 + ["short"] * 3 + ["rare"] * 2
    regression, _ = fit_log_regression(names, np.full(8, 10.0), np.array([100.0] * 3 + [1.0] * 3 + [10.0] * 2))
    assert regression.applications.tolist() == ["long", "short"]
    long, short, rare = np.exp(regression.predict(["long", "short", "rare"], np.full(3, 10.0)))
    assert short < 3 < rare < 30 < long


def test_the_left_out_error_is_that_of_a_regression_without_the_answer() -> None:
    rng = np.random.default_rng(0)
    names = ["a", "b"] * 10
    inputs = np.full(20, 8.0)  # of one length, so that leaving one out does not move the centre
    lengths = rng.integers(5, 50, 20).astype(float)
    _, missed = fit_log_regression(names, inputs, lengths)
    without, _ = fit_log_regression(names[1:], inputs[1:], lengths[1:])
    assert missed[0] == pytest.approx(np.log(lengths[0]) - without.predict(names[:1], inputs[:1])[0])


def test_it_survives_being_stored_and_a_model_stored_before_it_has_none() -> None:
    regression, _ = fit_log_regression(["a"] * 4, np.arange(1.0, 5.0), np.arange(2.0, 6.0))
    again = LogRegression.from_arrays(regression.to_arrays())
    asked = np.array([3.0, 9.0])
    assert again.predict(["a", "b"], asked).tolist() == regression.predict(["a", "b"], asked).tolist()
    assert LogRegression.from_arrays({}) is NO_ANSWERS
