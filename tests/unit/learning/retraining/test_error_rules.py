"""The papers' thresholds, and their scaling for services of small numbers."""

import pytest

from learning.retraining.error_rules import LENGTH_RULE, SERVING_RULE


@pytest.mark.parametrize(
    ("predicted", "actual", "worth"),
    [(100, 109, False), (100, 111, False), (100, 112, True), (20, 31, True), (20, 30, False), (300, 320, False)],
)
def test_a_length_error_counts_above_10_tokens_and_10_percent(predicted: int, actual: int, worth: bool) -> None:
    # 100 for 111: 11 tokens, but 9.9 % of 111; 100 for 112: 12 tokens and 10.7 %; 300 for 320: 20 tokens, 6.3 %
    assert LENGTH_RULE.worth_learning(predicted, actual) is worth


@pytest.mark.parametrize(
    ("expected", "took", "worth"), [(10, 12.4, False), (10, 13, True), (1, 2.9, False), (1, 3.1, True)]
)
def test_a_serving_time_error_counts_above_2_seconds_and_20_percent(expected: float, took: float, worth: bool) -> None:
    assert SERVING_RULE.worth_learning(expected, took) is worth


def test_rules_shrink_for_a_service_of_small_numbers_and_stay_at_the_papers_scale() -> None:
    assert LENGTH_RULE.scaled_to([200, 400]) == LENGTH_RULE
    assert LENGTH_RULE.scaled_to([10, 20]).absolute == pytest.approx(3)  # 2 · 10 % of 15
    assert SERVING_RULE.scaled_to([0.1]).absolute == pytest.approx(0.04)
    assert LENGTH_RULE.scaled_to([]) == LENGTH_RULE
