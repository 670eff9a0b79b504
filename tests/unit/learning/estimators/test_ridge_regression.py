"""The kernel ridge: its weights, and its leave-one-out predictions in closed form."""

import numpy as np
import pytest

from learning.estimators.ridge_regression import PENALTY, fit_ridge
from learning.features.hashed_text import hash_texts


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
