"""Scores by hand."""

import numpy as np
import pytest

from learning.metrics import pair_accuracy, score
from learning.predictors.length_predictor import Prediction


def test_scores_of_four_answers() -> None:
    predicted = [Prediction(10, 20), Prediction(100, 120), Prediction(200, 260), Prediction(50, 90)]
    scores = score(predicted, [10, 160, 340, 40])  # errors 0, 60, 140, 10
    assert scores.n == 4
    assert scores.mae == pytest.approx(52.5)
    assert scores.rmse == pytest.approx(np.sqrt((3600 + 19600 + 100) / 4))
    assert (scores.acc_50, scores.acc_100) == (0.5, 0.75)
    assert scores.coverage == 0.5  # 160 > 120, 340 > 260
    assert scores.tau == pytest.approx(1.0)
    assert scores.pair_accuracy == pytest.approx(1.0)


def test_a_predicted_tie_is_half_a_right_pair() -> None:
    assert pair_accuracy(np.array([5, 5, 5]), np.array([1, 2, 3])) == pytest.approx(0.5)
    assert pair_accuracy(np.array([1, 2]), np.array([7, 7])) == 0.5
