"""Predictions from the answers so far, before anything was fitted."""

import numpy as np
import pytest

from learning.features.length_predictor import Outcome, Prompt
from learning.predictors.cold_start import RunningRegression


def a_prompt(application: str = "chat", input_tokens: int = 7, limit: int = 400) -> Prompt:
    return Prompt(application, "", "text", input_tokens, input_tokens + 5, limit)


def answered(lengths: list[int], application: str = "chat", inputs: list[int] | None = None) -> list[Outcome]:
    inputs = inputs or [7] * len(lengths)
    return [Outcome(a_prompt(application, size), length) for size, length in zip(inputs, lengths, strict=True)]


def after(*seen: list[Outcome]) -> RunningRegression:
    predictor = RunningRegression()
    for outcomes in seen:
        predictor.observe(outcomes)
    return predictor


def test_the_first_answers_scale_every_input_length_and_leave_their_order() -> None:
    predictor = after(answered([70, 80], inputs=[7, 8]))
    short, long = predictor.predict([a_prompt(input_tokens=3), a_prompt("other", 9)])
    assert 20 < short.tokens < 30  # ten times as many, drawn a little to the input length
    assert 60 < long.tokens < 90
    assert short.upper_tokens == 400  # two answers have no upper quantile


def test_an_application_that_was_never_answered_is_predicted_by_the_answers_of_all() -> None:
    (predicted,) = after(answered([60, 70, 90])).predict([a_prompt("translation")])
    assert 40 < predicted.tokens < 90


def test_an_application_with_answers_of_its_own_is_hardly_disturbed_by_others() -> None:
    predictor = after(answered([1, 1, 1, 2] * 3, "classification"), answered([200, 210, 220, 230] * 3))
    classified, chatted = predictor.predict([a_prompt("classification"), a_prompt()])
    assert classified.tokens <= 2
    assert 150 < chatted.tokens < 250


def test_where_lengths_follow_the_inputs_the_prediction_does_too() -> None:
    predictor = after(answered([10, 22, 41, 79] * 4, "translation", inputs=[5, 11, 20, 40] * 4))
    short, long = predictor.predict([a_prompt("translation", 6), a_prompt("translation", 60)])
    assert short.tokens == pytest.approx(12, rel=0.1)
    assert long.tokens == pytest.approx(120, rel=0.1)


def test_answers_that_met_their_limit_count_and_cancelled_ones_do_not() -> None:
    predictor = after([Outcome(a_prompt(limit=100), 100, censored=True)] * 3)
    predictor.observe([Outcome(a_prompt(limit=100), 2, censored=True)] * 9)
    assert predictor.predict([a_prompt()])[0].tokens > 80


def test_old_answers_are_forgotten() -> None:
    predictor = after(answered([300] * 50), answered([20] * 400))
    assert predictor.predict([a_prompt()])[0].tokens == 20


def test_hostile_numbers_give_predictions_within_the_limit() -> None:
    hostile = [Outcome(a_prompt(input_tokens=10**9, limit=1), 1), Outcome(a_prompt(input_tokens=0), 10**9)]
    predictor = after(hostile * 5)
    for limit in (1, 400):
        for size in (0, 1, 10**9):
            (predicted,) = predictor.predict([a_prompt(input_tokens=size, limit=limit)])
            assert 1 <= predicted.tokens <= predicted.upper_tokens <= limit


@pytest.mark.parametrize("seed", range(5))
def test_nine_answers_in_ten_end_within_the_upper_quantile(seed: int) -> None:
    chance = np.random.default_rng(seed)
    lengths = np.clip(chance.lognormal(4, 0.7, 400), 1, 400).astype(int).tolist()
    inputs = chance.integers(3, 60, 400).tolist()
    predictor = after(answered(lengths[:200], inputs=inputs[:200]))
    asked = [a_prompt(input_tokens=size) for size in inputs[200:]]
    covered = [n <= p.upper_tokens for n, p in zip(lengths[200:], predictor.predict(asked), strict=True)]
    assert 0.83 <= np.mean(covered) <= 0.97
