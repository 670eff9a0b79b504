"""Scores by hand."""

import numpy as np
import pytest

from learning.estimators.metrics import accuracy_by_application, pair_accuracy, score
from learning.features.length_predictor import Outcome, Prediction
from tests.unit.learning.made_up_lengths import prompt


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


def served(application: str, pairs: list[tuple[int, int]]) -> list[Outcome]:
    return [Outcome(prompt(application), length, False, predicted, 2 * predicted) for predicted, length in pairs]


def test_each_application_with_enough_outcomes_is_judged_by_itself() -> None:
    good = served("good", [(i, i + 3) for i in range(20, 120)])
    bad = served("bad", [(20 + i, 200 - i) for i in range(100)])
    alike = served("alike", [(5, 5 + i % 2) for i in range(100)])
    accuracy = accuracy_by_application([*good, *bad, *alike, *served("rare", [(1, 900)] * 5)])
    assert sorted(accuracy) == ["alike", "bad", "good"]
    assert accuracy["good"].tau == pytest.approx(1.0)
    assert accuracy["bad"].tau == pytest.approx(-1.0)
    assert accuracy["alike"].mae == pytest.approx(0.5)  # every second answer is a token longer
    assert (accuracy["good"].n, accuracy["good"].coverage) == (100, 1.0)
