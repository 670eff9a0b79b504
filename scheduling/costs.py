"""How long prefill and decoding take, as functions of batch size and length (SCLS Eq. 1-4)."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class ServingTime(Protocol):
    """An estimator of the seconds that a batch takes on one worker; equal (and hashable) ones give equal estimates."""

    def __hash__(self) -> int: ...

    def serve_s(self, size: int, length: int, generation_length: int) -> float:
        """Return the seconds to serve `size` rows padded to `length` tokens for `generation_length` iterations."""
        ...

    def serve_many_s(self, sizes: Ints, lengths: Ints, generation_lengths: Ints) -> Floats:
        """Return `serve_s` of many batches, element by element."""
        ...


@dataclass(frozen=True, slots=True)
class ServingCurves:
    """The cost curves of one worker and model, in seconds: p1..p4 of Eq. (3) and d1..d4 of Eq. (4)."""

    prefill: tuple[float, float, float, float]
    decode: tuple[float, float, float, float]

    @property
    def coefficients(self) -> Floats:
        """The coefficients p1..p4 and d1..d4, (8,)."""
        return np.array([*self.prefill, *self.decode])

    @classmethod
    def from_coefficients(cls, coefficients: Floats) -> "ServingCurves":
        """Return the curves with these coefficients p1..p4 and d1..d4, (8,)."""
        p1, p2, p3, p4, d1, d2, d3, d4 = coefficients.tolist()
        return cls((p1, p2, p3, p4), (d1, d2, d3, d4))

    def prefill_s(self, size: int, length: int) -> float:
        """Return the seconds of the prefill of `size` rows padded to `length` tokens, Eq. (3)."""
        p1, p2, p3, p4 = self.prefill
        return max(0.0, p1 * size * length + p2 * size + p3 * length + p4)

    def decode_step_s(self, size: float, cached: float) -> float:
        """Return the seconds of one iteration of `size` rows with `cached` tokens each, Eq. (4)."""
        d1, d2, d3, d4 = self.decode
        return max(0.0, d1 * size * cached + d2 * size + d3 * cached + d4)

    def serve_s(self, size: int, length: int, generation_length: int) -> float:
        """Return the seconds of Eq. (1) and (2); the sum of Lo iterations is Lo times an iteration of mean length."""
        mean_cached = length + (generation_length + 1) / 2
        return self.prefill_s(size, length) + generation_length * self.decode_step_s(size, mean_cached)

    def serve_many_s(self, sizes: Ints, lengths: Ints, generation_lengths: Ints) -> Floats:
        """Return the seconds of Eq. (1) and (2), element by element."""
        p1, p2, p3, p4 = self.prefill
        d1, d2, d3, d4 = self.decode
        cached = lengths + (generation_lengths + 1) / 2
        prefill_s = np.maximum(0.0, p1 * sizes * lengths + p2 * sizes + p3 * lengths + p4)
        step_s = np.maximum(0.0, d1 * sizes * cached + d2 * sizes + d3 * cached + d4)
        return np.asarray(prefill_s + generation_lengths * step_s, dtype=np.float64)


# The points at which an estimator is sampled: batch sizes, batch lengths, iterations. A linear estimator gives the same
# curves at any points; the curves of any other are exact only at these. They span small to ordinary batches; not tuned.
SIZES = (1, 33)
LENGTHS = (32, 544)
ITERATIONS = (1, 65)

Coefficients = tuple[float, float, float, float]


@lru_cache(maxsize=4096)  # more than the workers of any fleet, each with an estimator of its own
def linearized(costs: ServingTime) -> ServingCurves:
    """Return the curves of SCLS Eq. (3) and (4) through an estimator's values at sampled points."""
    if isinstance(costs, ServingCurves):
        return costs
    sizes, lengths = np.repeat(SIZES, 2), np.tile(LENGTHS, 2)
    short, long = (costs.serve_many_s(sizes, lengths, np.full(4, iterations)) for iterations in ITERATIONS)
    # mean cached tokens of a row over the iterations that `long` has and `short` lacks
    cached = lengths + (sum(ITERATIONS) + 1) / 2
    decode = _bilinear_fit((long - short) / (ITERATIONS[1] - ITERATIONS[0]), cached)
    first = ServingCurves((0.0, 0.0, 0.0, 0.0), decode).serve_many_s(sizes, lengths, np.full(4, ITERATIONS[0]))
    return ServingCurves(_bilinear_fit(short - first, lengths.astype(np.float64)), decode)


def _bilinear_fit(values: Floats, lengths: Floats) -> Coefficients:
    """Fit a·n·l + b·n + c·l + d to the values at both sizes and both lengths; return (a, b, c, d), none negative."""
    (few, many), (short, long) = SIZES, lengths[:2]
    few_short, few_long, many_short, many_long = values.tolist()
    a = (many_long - many_short - few_long + few_short) / ((many - few) * (long - short))
    b = (many_short - few_short) / (many - few) - a * short
    c = (few_long - few_short) / (long - short) - a * few
    d = few_short - a * few * short - b * few - c * short
    return max(0.0, a), max(0.0, b), max(0.0, c), max(0.0, d)


@dataclass(frozen=True, slots=True)
class ProfiledCurves:
    """Curves that were measured before any traffic, by `magnus profile` or while the worker started."""

    curves: ServingCurves
    quick: bool = False  # measured in the seconds of the worker's start


@dataclass(frozen=True, slots=True)
class LearnedCurves:
    """Curves fitted to a worker's own steps, with their median relative error on the newest windows of steps."""

    curves: ServingCurves
    error: float
    windows: int
    version: int  # the number of the fit
    typical: tuple[float, float]  # median rows and cached tokens a row of the iterations in those windows


WorkerCurves = ProfiledCurves | LearnedCurves
