"""Samples summarised as a median and an upper quantile."""

import numpy as np

from learning.estimators.length_distribution import clamp_prediction, summarise
from learning.predictors.length_predictor import Prediction
from tests.unit.learning.made_up_lengths import prompt


def test_samples_give_their_median_and_the_quantile_that_covers_nine_tenths() -> None:
    samples = np.arange(0, 101, dtype=np.float32)[None]
    assert summarise(samples, [prompt(limit=1000)]) == [Prediction(50, 90)]


def test_a_prediction_is_at_least_one_token_and_at_most_the_limit() -> None:
    assert clamp_prediction(-3.0, 0.2, 100) == Prediction(1, 1)
    assert clamp_prediction(130.0, 150.0, 100) == Prediction(100, 100)


def test_the_upper_quantile_is_rounded_up_and_not_below_the_median() -> None:
    assert clamp_prediction(10.4, 12.1, 100) == Prediction(10, 13)
    assert clamp_prediction(20.0, 15.0, 100) == Prediction(20, 20)
