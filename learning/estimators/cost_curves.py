"""Fitting SCLS's curves (Eq. 3-4) to measured prefill and decode times, or to whole served batches."""

from collections.abc import Sequence

import numpy as np
from scipy.optimize import nnls

from scheduling.costs import ServingCurves

Timed = tuple[int, float, float]  # batch size, tokens a row, seconds

ROUGH = ServingCurves((2e-5, 0.0, 0.0, 0.005), (1e-7, 2e-4, 0.0, 0.005))  # a small model on a few cores


def fit_curves(prefills: Sequence[Timed], decode_steps: Sequence[Timed]) -> ServingCurves:
    """Curves through (size, length, seconds) of prefills and (size, cached tokens, seconds) of single iterations."""
    return ServingCurves(_plane(prefills), _plane(decode_steps))


def fit_batches(batches: Sequence[tuple[int, int, int, float]]) -> ServingCurves:
    """Curves through whole batches: (size, length, generation length, seconds), at least eight of them."""
    size, length, generated, seconds = np.array(batches, np.float64).T
    cached = length + (generated + 1) / 2
    prefill = _terms(size, length)
    decode = _terms(size, cached) * generated[:, None]
    p1, p2, p3, p4, d1, d2, d3, d4 = _solve(np.concatenate([prefill, decode], axis=1), seconds)
    return ServingCurves((p1, p2, p3, p4), (d1, d2, d3, d4))


def _plane(timed: Sequence[Timed]) -> tuple[float, float, float, float]:
    size, tokens, seconds = np.array(timed, np.float64).T
    a, b, c, d = _solve(_terms(size, tokens), seconds)
    return a, b, c, d


def _terms(size: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    return np.stack([size * tokens, size, tokens, np.ones_like(size)], axis=1)


def _solve(terms: np.ndarray, seconds: np.ndarray) -> list[float]:
    """Least squares of the relative error with no negative coefficient: more work never takes less time."""
    relative = 1 / np.maximum(seconds, 1e-6)
    scaled = terms * relative[:, None]
    norms = np.maximum(np.linalg.norm(scaled, axis=0), 1e-12)
    coefficients, _ = nnls(scaled / norms, seconds * relative)
    return [float(c) for c in coefficients / norms]
