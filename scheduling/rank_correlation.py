"""Measures how well predicted generation lengths rank the answers by length: Kendall's tau-b."""

import math
from bisect import bisect_right, insort
from collections import deque

import numpy as np

# In simulations RankCorrelation takes the place of the trainer, which publishes tau of the last 500 answers to a live
# planner. More answers make tau less noisy, but slower to show that predictions became worse or better. Not tuned.
RECENT_ANSWERS = 256
ANSWERS_BETWEEN_UPDATES = 64
MIN_TAU = 0.1  # with a lower tau predicted lengths do not count at all; not tuned


class RankCorrelation:
    """Kendall's tau of the latest predicted and true generation lengths, recomputed at intervals."""

    def __init__(self) -> None:
        self._recent: deque[tuple[int, int]] = deque(maxlen=RECENT_ANSWERS)
        self._answers = 0

    def update(self, predicted: int, generated: int) -> float | None:
        """Count an answer; after every `ANSWERS_BETWEEN_UPDATES` answers return tau of the recent ones, else None."""
        self._recent.append((predicted, generated))
        self._answers += 1
        return kendall_tau(*np.array(self._recent).T) if self._answers % ANSWERS_BETWEEN_UPDATES == 0 else None


def prediction_weight(tau: float | None) -> float:
    """Return the exponent for predicted lengths, 0 to 1: the linear correlation that corresponds to Kendall's tau.

    For normal variables that is sin(π/2 · τ). At 0, requests of equal prompts are served first come, first served.
    Until tau is known (None), predictions count in full.
    """
    if tau is None:
        return 1.0
    return math.sin(math.pi / 2 * tau) if tau >= MIN_TAU else 0.0


def kendall_tau(first: np.ndarray, second: np.ndarray) -> float:
    """Return Kendall's tau-b of two arrays of numbers, or 0 where it is undefined (all values of an array are equal).

    Tau-b is (C - D) / √((P - T1)·(P - T2)). Of P pairs of positions, C are in the same order in both arrays, D in
    opposite order, T1 are ties of the first array, T2 of the second. By Knight's method D is the number of inversions
    of the second array once both are sorted by the first, so that pairs are not compared one by one.
    """
    untied = math.sqrt((_pairs(first) - _ties(first)) * (_pairs(second) - _ties(second)))
    if not untied:
        return 0.0
    both = np.unique(np.stack([first, second]), axis=1, return_counts=True)[1]
    tied = _ties(first) + _ties(second) - int((both * (both - 1) // 2).sum())
    inversions = _inversions(second[np.lexsort((second, first))].tolist())
    return (_pairs(first) - tied - 2 * inversions) / untied


def _pairs(values: np.ndarray) -> int:
    return len(values) * (len(values) - 1) // 2


def _ties(values: np.ndarray) -> int:
    counts = np.unique(values, return_counts=True)[1]
    return int((counts * (counts - 1) // 2).sum())


def _inversions(values: list[float]) -> int:
    """Return the number of pairs whose earlier value is larger."""
    inversions, smaller_first = 0, list[float]()
    for count, value in enumerate(values):
        inversions += count - bisect_right(smaller_first, value)
        insort(smaller_first, value)
    return inversions
