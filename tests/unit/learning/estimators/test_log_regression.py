"""The regression between logarithms: what its prior says without answers, and what each answer adds."""

import numpy as np
import pytest

from learning.estimators.log_regression import NO_ANSWERS, LogRegression, fit_log_regression


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
