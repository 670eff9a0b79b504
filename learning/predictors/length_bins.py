"""Lengths in bins of 50 tokens (Sequence Scheduling 4.1); a bin's upper bound is the longest length in it."""

import numpy as np
import numpy.typing as npt

from learning.estimators.length_distribution import Samples

BIN_TOKENS = 50  # the paper's
SAMPLES = 64  # of a distribution: more resolve its quantiles beyond 1/64 and cost time; not tuned


def bin_number(length: int) -> int:
    """The number of the bin that a length falls into, from 0."""
    return max(0, length - 1) // BIN_TOKENS


def bin_upper_bound(number: int) -> int:
    """The longest length in a bin."""
    return (number + 1) * BIN_TOKENS


def samples_of_bins(probabilities: npt.NDArray[np.float64]) -> Samples:
    """Equally likely lengths, (rows, SAMPLES), from bin probabilities (rows, bins), evenly spread within each bin."""
    edges = np.arange(probabilities.shape[1] + 1) * BIN_TOKENS
    levels = (np.arange(SAMPLES) + 0.5) / SAMPLES
    rows = [np.interp(levels, np.concatenate([[0], np.cumsum(row)]), edges) for row in probabilities]
    return np.array(rows, np.float32).reshape(-1, SAMPLES)
