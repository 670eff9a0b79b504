"""Fits SCLS's serving time curves (Eq. 3-4) to measured prefill and decode times, or to whole served batches."""

from collections.abc import Sequence

import numpy as np
from scipy.optimize import nnls

from scheduling.costs import Coefficients, Floats, ServingCurves

Timing = tuple[int, float, float]  # batch size, tokens a row, seconds

# The curves of a worker without a profile and without served batches; they have the order of magnitude of a small model
# on a few CPU cores.
DEFAULT_CURVES = ServingCurves((2e-5, 0.0, 0.0, 0.005), (1e-7, 2e-4, 0.0, 0.005))

# In feasible curves a further row costs at most as much as the fixed part of an iteration or a prefill, because it uses
# the same weights; this many cached tokens cost at most as much, too. In our engine and the machines of
# `benchmarks.published_costs`, only over 3,000 cached tokens cost as much. Without this rule, times measured beside
# other work can fit curves without a fixed cost, by which batches save nothing.
ROW_TOKENS = 1024
# Columns whose combinations without negative weights are the feasible coefficients p1..p4, d1..d4.
FEASIBLE: Floats = np.eye(8)
FEASIBLE[3, 1] = FEASIBLE[7, 5] = 1.0  # p4 >= p2, d4 >= d2 + …
FEASIBLE[7, 4] = FEASIBLE[7, 6] = ROW_TOKENS  # … ROW_TOKENS · (d1 + d3)


def fit_curves(prefills: Sequence[Timing], decode_steps: Sequence[Timing]) -> ServingCurves:
    """Fit curves to (size, length, seconds) of prefills and (size, cached tokens a row, seconds) of iterations."""
    return ServingCurves(_fit_one(prefills, FEASIBLE[:4, :4]), _fit_one(decode_steps, FEASIBLE[4:, 4:]))


def fit_curves_to_batches(batches: Sequence[tuple[int, int, int, float]]) -> ServingCurves:
    """Fit curves to at least eight whole batches, (size, length, generation length, seconds)."""
    size, length, generated, seconds = np.array(batches, np.float64).T
    mean_cached = length + (generated + 1) / 2
    prefill = terms(size, length)
    decode = terms(size, mean_cached) * generated[:, None]
    return ServingCurves.from_coefficients(_least_squares(np.concatenate([prefill, decode], axis=1), seconds, FEASIBLE))


def _fit_one(timings: Sequence[Timing], feasible: Floats) -> Coefficients:
    size, tokens, seconds = np.array(timings, np.float64).T
    a, b, c, d = _least_squares(terms(size, tokens), seconds, feasible).tolist()
    return a, b, c, d


def terms(size: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Return the factors of the four coefficients of Eq. (3) and of Eq. (4), (timings, 4)."""
    return np.stack([size * tokens, size, tokens, np.ones_like(size)], axis=1)


def _least_squares(terms: Floats, seconds: Floats, feasible: Floats) -> Floats:
    """Return the non-negative combination of the columns of `feasible` with the least squared relative errors."""
    relative = 1 / np.maximum(seconds, 1e-6)
    scaled = (terms * relative[:, None]) @ feasible
    norms = np.maximum(np.linalg.norm(scaled, axis=0), 1e-12)
    weights, _ = nnls(scaled / norms, seconds * relative)
    return np.asarray(feasible @ (weights / norms), np.float64)
