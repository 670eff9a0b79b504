"""Lengths in bins of 50 tokens (Sequence Scheduling 4.1): a bin is named by its upper bound, the longest it allows."""

import numpy as np
import numpy.typing as npt

from learning.estimators.length_distribution import Samples

BIN_TOKENS = 50
SAMPLES = 64


def bin_of(length: int) -> int:
    """The number of the bin, from 0."""
    return max(0, length - 1) // BIN_TOKENS


def bound_of(number: int) -> int:
    """The longest length in a bin."""
    return (number + 1) * BIN_TOKENS


def samples_of(probabilities: npt.NDArray[np.float64]) -> Samples:
    """Equally likely lengths of rows of bin probabilities, (rows, SAMPLES), evenly spread within each bin."""
    edges = np.arange(probabilities.shape[1] + 1) * BIN_TOKENS
    levels = (np.arange(SAMPLES) + 0.5) / SAMPLES
    rows = [np.interp(levels, np.concatenate([[0], np.cumsum(row)]), edges) for row in probabilities]
    return np.array(rows, np.float32).reshape(-1, SAMPLES)
