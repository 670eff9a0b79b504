"""Measures what ranks recent answers by their work: predicted generation lengths, by Kendall's tau-b, and prompts."""

import math
from bisect import bisect_right, insort
from collections import deque
from typing import NamedTuple

import numpy as np

from scheduling.costs import Floats, cached_tokens

# In simulations RankedAnswers takes the place of the trainer, which publishes that of the last 500 answers to a
# live planner. More answers make it less noisy, but slower to show that predictions became worse or better. Not tuned.
RECENT_ANSWERS = 256
ANSWERS_BETWEEN_UPDATES = 64
MIN_TAU = 0.1  # with a lower tau predicted lengths do not count at all; not tuned


class RankCorrelation(NamedTuple):
    """What recent answers say about estimates of work: predictions' tau, and whether prompts make the order better."""

    tau: float | None = None  # Kendall's tau of predicted and true generation lengths; None while it is unknown
    by_prompts: bool = True  # False: estimates rank the answers' work better without the prompts' lengths


class RankedAnswers:
    """The latest answers, by which the rank correlation is measured anew at intervals."""

    def __init__(self) -> None:
        self._recent: deque[tuple[int, int, int]] = deque(maxlen=RECENT_ANSWERS)
        self._answers = 0

    def update(self, prompt: int, predicted: int, generated: int) -> RankCorrelation | None:
        """Count an answer, in tokens; after every `ANSWERS_BETWEEN_UPDATES` return the rank correlation, else None."""
        self._recent.append((prompt, predicted, generated))
        self._answers += 1
        due = self._answers % ANSWERS_BETWEEN_UPDATES == 0
        return rank_correlation(*np.array(self._recent, np.float64).T) if due else None


def rank_correlation(prompts: Floats, predicted: Floats, generated: Floats) -> RankCorrelation:
    """Return the rank correlation of answers from their prompts, predicted and generated lengths in tokens, (answers,).

    Where the longest answers have short prompts, as chats beside code comments do, prompts mislead unless predictions
    are good. They count unless estimates rank the work better without them by more than tau's standard error, 2 / (3√n)
    for unrelated variables. The work that is compared is that of memory: cached tokens summed over the iterations.
    """
    tau = kendall_tau(predicted, generated)
    counted = weighted(predicted, max(1.0, predicted.mean()), prediction_weight(tau))
    work = cached_tokens(prompts, generated)
    gained = kendall_tau(cached_tokens(prompts, counted), work) - kendall_tau(counted, work)
    return RankCorrelation(tau, gained >= -2 / (3 * math.sqrt(len(work))))


def weighted(predicted: Floats, mean: float, weight: float) -> Floats:
    """Return predicted lengths; the lower the weight of predictions, 0 to 1, the closer to their mean."""
    return np.asarray(mean * (predicted / mean) ** weight, np.float64)


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
