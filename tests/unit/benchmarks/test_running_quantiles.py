"""Predictions from the answers so far, before anything was fitted."""

import numpy as np
import pytest

from benchmarks.running_quantiles import RunningQuantiles
from learning.predictors.length_predictor import Outcome, Prompt


def a_prompt(application: str = "chat", input_tokens: int = 7, limit: int = 400) -> Prompt:
    return Prompt(application, "", "text", input_tokens, input_tokens + 5, limit)


def answered(lengths: list[int], application: str = "chat", inputs: list[int] | None = None) -> list[Outcome]:
    inputs = inputs or [7] * len(lengths)
    return [Outcome(a_prompt(application, size), length) for size, length in zip(inputs, lengths, strict=True)]


def test_before_the_first_answer_the_input_length_is_predicted_and_the_limit_reserved() -> None:
    (predicted,) = RunningQuantiles().predict([a_prompt()])
    assert (predicted.tokens, predicted.upper_tokens) == (7, 400)


def test_three_answers_are_enough_to_predict_their_median() -> None:
    predictor = RunningQuantiles()
    predictor.observe(answered([60, 70, 90], inputs=[3, 9, 30]))
    (predicted,) = predictor.predict([a_prompt()])
    assert predicted.tokens == 70
    assert predicted.upper_tokens == 135  # 1.5 times the longest, because three answers have no 90 % quantile


def test_an_application_that_was_never_answered_is_predicted_by_the_answers_of_all() -> None:
    predictor = RunningQuantiles()
    predictor.observe(answered([60, 70, 90], inputs=[3, 9, 30]))
    (predicted,) = predictor.predict([a_prompt("translation")])
    assert predicted.tokens == 70


def test_an_application_with_answers_of_its_own_is_not_disturbed_by_others() -> None:
    predictor = RunningQuantiles()
    predictor.observe(answered([1, 1, 1, 2], "classification"))
    predictor.observe(answered([200, 210, 220, 230]))
    assert predictor.predict([a_prompt("classification")])[0].tokens == 1


def test_where_lengths_follow_the_inputs_the_prediction_does_too() -> None:
    predictor = RunningQuantiles()
    predictor.observe(answered([10, 22, 41, 79], "translation", inputs=[5, 11, 20, 40]))
    short, long = predictor.predict([a_prompt("translation", 6), a_prompt("translation", 60)])
    assert short.tokens == 12
    assert long.tokens == 120


def test_answers_that_met_their_limit_count_and_cancelled_ones_do_not() -> None:
    predictor = RunningQuantiles()
    predictor.observe([Outcome(a_prompt(limit=100), 100, censored=True)] * 3)
    predictor.observe([Outcome(a_prompt(limit=100), 2, censored=True)] * 9)
    assert predictor.predict([a_prompt()])[0].tokens == 100


def test_old_answers_are_forgotten() -> None:
    predictor = RunningQuantiles()
    predictor.observe(answered([300] * 50))
    predictor.observe(answered([20] * 400))
    assert predictor.predict([a_prompt()])[0].tokens == 20


@pytest.mark.parametrize("seed", range(5))
def test_nine_answers_in_ten_end_within_the_upper_quantile(seed: int) -> None:
    chance = np.random.default_rng(seed)
    lengths = np.clip(chance.lognormal(4, 0.7, 400), 1, 400).astype(int).tolist()
    predictor = RunningQuantiles()
    predictor.observe(answered(lengths[:200], inputs=chance.integers(3, 60, 200).tolist()))
    covered = [length <= predictor.predict([a_prompt()])[0].upper_tokens for length in lengths[200:]]
    assert 0.83 <= np.mean(covered) <= 0.97
