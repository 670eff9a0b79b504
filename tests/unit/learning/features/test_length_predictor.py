"""Samples summarised as a median and an upper quantile."""

import numpy as np
import pytest

from learning.features.length_predictor import Prediction, clamp_prediction, summarise
from learning.predictors.length_bins import samples_of_bins
from tests.unit.learning.made_up_lengths import prompt


def test_samples_give_their_median_and_the_quantile_that_covers_nine_tenths() -> None:
    samples = np.arange(0, 101, dtype=np.float32)[None]
    assert summarise(samples, [prompt(limit=1000)]) == [Prediction(50, 90)]


def test_the_upper_quantile_is_rounded_up_and_not_below_the_median() -> None:
    assert clamp_prediction(10.4, 12.1, 100) == Prediction(10, 13)
    assert clamp_prediction(20.0, 15.0, 100) == Prediction(20, 20)


def test_samples_of_bins_spread_evenly_within_them() -> None:
    samples = samples_of_bins(np.array([[0.0, 1.0, 0.0], [0.5, 0.0, 0.5]]))
    assert 50 <= samples[0].min() < samples[0].max() <= 100
    assert samples[0].mean() == pytest.approx(75, abs=1)
    assert (samples[1] <= 50).mean() == pytest.approx(0.5)
