"""The seconds of prefill and decoding as functions of batch size and length (SCLS Eq. 1-4)."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Tokens = TypeVar("Tokens", float, Floats)


def cached_tokens(prefill: Tokens, generated: Tokens) -> Tokens:
    """Return the cached tokens of a row, or of each of several rows, summed over the iterations of its answer."""
    return generated * (prefill + generated / 2)


class ServingTime(Protocol):
    """Estimates the seconds that a batch takes on one worker; hashable, and equal estimators give equal estimates."""

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
        """Return the coefficients p1..p4 and d1..d4, an array of shape (8,)."""
        return np.array([*self.prefill, *self.decode])

    @classmethod
    def from_coefficients(cls, coefficients: Floats) -> "ServingCurves":
        """Return the curves with these coefficients p1..p4 and d1..d4, an array of shape (8,)."""
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
        """Return the seconds of Eq. (1) and (2): the prefill, and all iterations as if each had the mean length."""
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


# An estimator is sampled at these batch sizes, batch lengths and iterations, from small to ordinary batches. A linear
# estimator has the same curves at any points; the curves of any other are exact only at these points. Not tuned.
SIZES = (1, 33)
LENGTHS = (32, 544)
ITERATIONS = (1, 65)

Coefficients = tuple[float, float, float, float]


@lru_cache(maxsize=4096)  # more than the workers of any fleet, each of which has an estimator of its own
def linearized(costs: ServingTime) -> ServingCurves:
    """Return the curves of SCLS Eq. (3) and (4) through an estimator's values at sampled points."""
    if isinstance(costs, ServingCurves):
        return costs
    sizes, lengths = np.repeat(SIZES, 2), np.tile(LENGTHS, 2)
    short, long = (costs.serve_many_s(sizes, lengths, np.full(4, iterations)) for iterations in ITERATIONS)
    # The mean cached tokens of a row over the iterations that `long` has and `short` lacks.
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


@dataclass(slots=True)
class StepWindow:
    """Sums over some steps of an engine, which took `seconds` together and ended at `at` (monotonic).

    The sums over prefills are tokens with padding, rows, batch lengths, and the number of prefills. The sums over
    iterations are rows times cached tokens a row, rows, cached tokens a row, and the number of iterations. The code
    that counts steps adds to a window until the window ends.
    """

    seconds: float
    at: float
    prefilled_tokens: float = 0.0
    prefilled_rows: float = 0.0
    prefilled_lengths: float = 0.0
    prefills: float = 0.0
    row_reads: float = 0.0
    row_steps: float = 0.0
    reads: float = 0.0
    steps: float = 0.0

    @property
    def sums(self) -> tuple[float, ...]:
        """Return the eight sums, each of which is the factor of one coefficient of the curves, in their order."""
        prefilled = self.prefilled_tokens, self.prefilled_rows, self.prefilled_lengths, self.prefills
        return *prefilled, self.row_reads, self.row_steps, self.reads, self.steps

    @property
    def kind(self) -> tuple[int, int, bool]:
        """Return rows and tokens a row of an iteration, or else a prefill, in binary digits; and if any prefilled."""
        if self.steps:
            rows, tokens = self.row_steps / self.steps, self.row_reads / max(self.row_steps, 1.0)
        else:
            rows, tokens = self.prefilled_rows, self.prefilled_tokens / max(self.prefilled_rows, 1.0)
        return round(rows).bit_length(), round(tokens).bit_length(), self.prefilled_tokens > 0


@dataclass(frozen=True, slots=True)
class ProfiledCurves:
    """Curves that were measured before any request came, by `magnus profile` or while the worker started."""

    curves: ServingCurves
    quick: bool = False  # whether they were measured within the seconds of the worker's start


@dataclass(frozen=True, slots=True)
class LearnedCurves:
    """Curves fitted to a worker's own steps, with their median relative error on the newest windows of steps."""

    curves: ServingCurves
    error: float
    windows: int
    version: int  # fits are numbered in order
    typical: tuple[float, float]  # the median rows, and cached tokens a row, of the iterations in those windows


WorkerCurves = ProfiledCurves | LearnedCurves


@dataclass(frozen=True, slots=True)
class ServedBatch:
    """A served batch from the log; it ended at `at`, in seconds since the epoch."""

    worker: str
    model: str
    size: int
    length: int
    generation_length: int
    serving_s: float
    at: float = 0.0
