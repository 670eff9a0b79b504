"""Bins of lengths, and samples of their distribution."""

import numpy as np
import pytest

from learning.predictors.length_bins import bin_number, bin_upper_bound, samples_of_bins


def test_bins_are_fifty_tokens_and_named_by_their_upper_bound() -> None:
    assert [bin_upper_bound(bin_number(n)) for n in (1, 50, 51, 100, 101)] == [50, 50, 100, 100, 150]


def test_samples_of_bins_spread_evenly_within_them() -> None:
    samples = samples_of_bins(np.array([[0.0, 1.0, 0.0], [0.5, 0.0, 0.5]]))
    assert 50 <= samples[0].min() < samples[0].max() <= 100
    assert samples[0].mean() == pytest.approx(75, abs=1)
    assert (samples[1] <= 50).mean() == pytest.approx(0.5)
