"""How good recent predictions were, by application."""

import pytest

from learning.calibration.recent_accuracy import accuracy_by_application
from learning.predictors.length_predictor import Outcome
from tests.unit.learning.made_up_lengths import prompt


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


def test_answers_that_were_cut_off_or_never_predicted_are_not_judged() -> None:
    cut_off = [Outcome(prompt(), 50, True, 10, 20)] * 50
    assert accuracy_by_application([*cut_off, *[Outcome(prompt(), 50)] * 50]) == {}
