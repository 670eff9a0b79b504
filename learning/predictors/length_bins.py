"""Lengths in bins of 50 tokens (Sequence Scheduling 4.1); a bin's upper bound is the longest length in it."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from learning.features.length_predictor import Outcome, Prompt, Samples

Target = Literal["longest", "mean"]  # what tuning aims at: the length of a prompt's longest answer, or the mean length

BIN_TOKENS = 50  # the paper's width of a bin, for answers of some 250 tokens
BIN_SHARE = 0.2  # bin width relative to the mean length, for services with shorter answers
SAMPLES = 64  # samples of a distribution; they resolve its quantiles to 1/64; not tuned


def bin_width(outcomes: Sequence[Outcome]) -> int:
    """Return the width of a bin in tokens: the paper's, or less if these answers are short."""
    mean = float(np.mean([outcome.generated_tokens for outcome in outcomes]))
    return max(1, min(BIN_TOKENS, round(BIN_SHARE * mean)))


def bin_number(length: int, width: int = BIN_TOKENS) -> int:
    """Return the number, from 0, of the bin that a length falls into."""
    return max(0, length - 1) // width


def bin_upper_bound(number: int, width: int = BIN_TOKENS) -> int:
    """Return the longest length in a bin."""
    return (number + 1) * width


def target_bins(outcomes: Sequence[Outcome], target: Target, width: int) -> dict[Prompt, int]:
    """Return the number of the bin of each prompt's longest answer, or of the mean of its answers.

    The paper takes the longest, because a prediction that is too short costs more than one that is too long.
    """
    lengths = defaultdict(list)
    for outcome in outcomes:
        lengths[outcome.prompt].append(outcome.generated_tokens)
    chosen = {prompt: max(of_one) if target == "longest" else np.mean(of_one) for prompt, of_one in lengths.items()}
    return {prompt: bin_number(int(np.ceil(length)), width) for prompt, length in chosen.items()}


def samples_of_bins(probabilities: npt.NDArray[np.float64], width: int = BIN_TOKENS) -> Samples:
    """Return equally likely lengths, (rows, SAMPLES), for probabilities of bins, (rows, bins); each bin is uniform."""
    edges = np.arange(probabilities.shape[1] + 1) * width
    levels = (np.arange(SAMPLES) + 0.5) / SAMPLES
    rows = [np.interp(levels, np.concatenate([[0], np.cumsum(row)]), edges) for row in probabilities]
    return np.array(rows, np.float32).reshape(-1, SAMPLES)
