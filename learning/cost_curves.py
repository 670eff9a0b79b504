"""Fits SCLS's serving time curves (Eq. 3-4) to measured prefill and decode times, or to whole served batches."""

from collections.abc import Sequence

import numpy as np
from scipy.optimize import nnls

from scheduling.costs import ServingCurves

Timing = tuple[int, float, float]  # batch size, tokens a row, seconds

# Used for a worker without profile and served batches: the order of magnitude of a small model on a few CPU cores.
DEFAULT_CURVES = ServingCurves((2e-5, 0.0, 0.0, 0.005), (1e-7, 2e-4, 0.0, 0.005))


def fit_curves(prefills: Sequence[Timing], decode_steps: Sequence[Timing]) -> ServingCurves:
    """Fit curves to (size, length, seconds) of prefills and (size, cached tokens a row, seconds) of iterations."""
    return ServingCurves(_fit_one(prefills), _fit_one(decode_steps))


def fit_curves_to_batches(batches: Sequence[tuple[int, int, int, float]]) -> ServingCurves:
    """Fit curves to at least eight whole batches, (size, length, generation length, seconds)."""
    size, length, generated, seconds = np.array(batches, np.float64).T
    mean_cached = length + (generated + 1) / 2
    prefill = _terms(size, length)
    decode = _terms(size, mean_cached) * generated[:, None]
    p1, p2, p3, p4, d1, d2, d3, d4 = _least_squares(np.concatenate([prefill, decode], axis=1), seconds)
    return ServingCurves((p1, p2, p3, p4), (d1, d2, d3, d4))


def _fit_one(timings: Sequence[Timing]) -> tuple[float, float, float, float]:
    size, tokens, seconds = np.array(timings, np.float64).T
    a, b, c, d = _least_squares(_terms(size, tokens), seconds)
    return a, b, c, d


def _terms(size: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Return the factors of the four coefficients of Eq. (3) and of Eq. (4), (timings, 4)."""
    return np.stack([size * tokens, size, tokens, np.ones_like(size)], axis=1)


def _least_squares(terms: np.ndarray, seconds: np.ndarray) -> list[float]:
    """Minimise squared relative errors. No coefficient is negative, so that more work never takes less time."""
    relative = 1 / np.maximum(seconds, 1e-6)
    scaled = terms * relative[:, None]
    norms = np.maximum(np.linalg.norm(scaled, axis=0), 1e-12)
    coefficients, _ = nnls(scaled / norms, seconds * relative)
    return [float(c) for c in coefficients / norms]
