"""Kernel ridge regression in closed form, with the leave-one-out prediction of each row."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve

from scheduling.costs import Floats, Ints

PENALTY = 2.0  # λ: a larger one draws the weights of words that were seen a few times closer to 0; it was not tuned


def fit_ridge(products: Floats, targets: Floats) -> tuple[Floats, Floats]:
    """Dual weights (rows,) and leave-one-out predictions (rows,) from the products of all pairs of rows, (rows, rows).

    For fewer rows than dimensions. The dual weights sum to 0, so the weight of each column is its product with them.
    With G = (K + λI)⁻¹ over the products K of the centred rows, the prediction of row i by a ridge that was fitted
    without it is y_i - (G y)_i / G_ii.
    """
    means = products.mean(axis=0)
    centred = products - means - means[:, None] + means.mean()
    factor = cho_factor(centred + PENALTY * np.eye(len(products)), lower=True)
    inverse = cho_solve(factor, np.eye(len(products)))
    dual = inverse @ (targets - targets.mean())
    return dual, targets - dual / np.diag(inverse)


ITERATIONS = 20  # of reweighted least squares: more come closer to least absolute errors and cost time; not tuned
LONGEST_QUANTILE = 0.99  # of inputs counts as the longest: one very long input must not decide how far the line goes
EXTRAPOLATION = 1.5  # inputs above this many times the longest are read as so long, which bounds errors; not tuned
# The spread divides, and a fitted line of errors may fall below 0. So it is at least this share of the mean error
# plus this many tokens. Neither number was tuned.
LEAST_SPREAD_SHARE = 0.25
LEAST_SPREAD_TOKENS = 0.5


@dataclass(frozen=True, slots=True)
class RobustRegression:
    """length ≈ intercept + slope · input, with a mean absolute error of spread_intercept + spread_slope · input.

    All in tokens. The fields are numbers, or arrays of one value for each input.
    """

    intercept: float
    slope: float
    spread_intercept: float
    spread_slope: float
    least_spread: float
    longest_input: float

    def predict(self, inputs: Floats) -> Floats:
        """Expected answer lengths for these user input lengths."""
        return self.intercept + self.slope * np.minimum(inputs, EXTRAPOLATION * self.longest_input)

    def spread(self, inputs: Floats) -> Floats:
        """The mean absolute error at these user input lengths."""
        spread = self.spread_intercept + self.spread_slope * np.minimum(inputs, self.longest_input)
        return np.maximum(spread, self.least_spread)


def fit_robust_regression(inputs: Floats, lengths: Floats) -> RobustRegression:
    """Least absolute errors by iteratively reweighted least squares: a few outliers do not tilt the line."""
    terms = np.stack([np.ones_like(inputs), inputs], axis=1)
    weights = np.ones_like(inputs)
    line: Floats = np.zeros(2)
    for _ in range(ITERATIONS):
        weighted = terms * weights[:, None]
        # 1e-6: solvable also where all inputs have one length
        line = np.asarray(np.linalg.solve(weighted.T @ terms + 1e-6 * np.eye(2), weighted.T @ lengths))
        errors = np.abs(lengths - terms @ line)
        weights = 1 / np.maximum(errors, 1 + 0.1 * np.median(errors))  # errors near 0 must not get all of the weight
    longest = float(np.quantile(inputs, LONGEST_QUANTILE))
    error_terms = np.stack([np.ones_like(inputs), np.minimum(inputs, longest)], axis=1)
    spread_intercept, spread_slope = np.linalg.lstsq(error_terms, errors, rcond=None)[0]
    least = LEAST_SPREAD_SHARE * float(errors.mean()) + LEAST_SPREAD_TOKENS
    return RobustRegression(
        float(line[0]), float(line[1]), float(spread_intercept), float(spread_slope), least, longest
    )


FEWEST_ANSWERS = 3  # of an application before it has terms of its own: one or two say little of the others
# How many answers each term's prior counts as. On 668 answers of a real model, from the 60th on, MAE and tau were the
# same within 3 % for slopes from 3 to 100 and applications from 0.5 to 2. Before, a weak prior on slopes ranks worse.
OFFSET_PRIOR = 0.1
SLOPE_PRIOR = 30.0
APPLICATION_OFFSET_PRIOR = 1.0
APPLICATION_SLOPE_PRIOR = 30.0
MOST_LEVERAGE = 0.95  # bounds the left-out error of an answer that alone decides a term


@dataclass(frozen=True, slots=True)
class LogRegression:
    """The terms: shared offset and slope first, then the offsets of `applications`, then their slopes."""

    applications: npt.NDArray[np.str_]
    centre: float  # mean logarithm of the input lengths
    terms: Floats  # (2 + 2 · applications,)

    def predict(self, applications: Sequence[str], inputs: Floats) -> Floats:
        """The logarithm of each answer's length."""
        logs = np.log(np.maximum(inputs, 1))
        found = _numbers(self.applications, applications)
        return np.asarray(logs + _design(found, logs - self.centre, len(self.applications)) @ self.terms)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Its state, to be stored."""
        return {"log_applications": self.applications, "log_terms": np.concatenate([[self.centre], self.terms])}

    @classmethod
    def from_arrays(cls, arrays: dict[str, npt.NDArray[Any]]) -> "LogRegression":
        """The stored regression; one without answers for a model that was stored before there was one."""
        if "log_terms" not in arrays:
            return NO_ANSWERS
        centre, *terms = arrays["log_terms"].tolist()
        return cls(arrays["log_applications"], centre, np.array(terms))


NO_ANSWERS = LogRegression(np.array([], str), 0.0, np.zeros(2))


def fit_log_regression(applications: Sequence[str], inputs: Floats, lengths: Floats) -> tuple[LogRegression, Floats]:
    """The regression of these answers, and for each what a regression without it misses: log length less prediction."""
    if not len(lengths):
        return NO_ANSWERS, np.zeros(0)
    counts = Counter(applications)
    own = np.array(sorted(name for name, count in counts.items() if count >= FEWEST_ANSWERS), str)
    logs = np.log(np.maximum(inputs, 1))
    centre = float(logs.mean())
    design = _design(_numbers(own, applications), logs - centre, len(own))
    prior = [OFFSET_PRIOR, SLOPE_PRIOR] + [APPLICATION_OFFSET_PRIOR] * len(own) + [APPLICATION_SLOPE_PRIOR] * len(own)
    inverse = np.linalg.inv(design.T @ design + np.diag(prior))
    targets = np.log(np.maximum(lengths, 1)) - logs
    terms = inverse @ (design.T @ targets)
    leverage = np.einsum("ij,jk,ik->i", design, inverse, design)
    missed = (targets - design @ terms) / (1 - np.minimum(leverage, MOST_LEVERAGE))
    return LogRegression(own, centre, terms), np.asarray(missed)


def _numbers(known: npt.NDArray[np.str_], applications: Sequence[str]) -> Ints:
    """The row of each application among those with terms of their own, -1 for others."""
    rows = {str(name): row for row, name in enumerate(known)}
    return np.array([rows.get(name, -1) for name in applications], np.int64)


def _design(numbers: Ints, centred: Floats, applications: int) -> Floats:
    """One row an answer, with a 1 or the centred logarithm in the columns of its terms."""
    design = np.zeros((len(numbers), 2 + 2 * applications))
    design[:, 0], design[:, 1] = 1.0, centred
    own = np.flatnonzero(numbers >= 0)
    design[own, 2 + numbers[own]] = 1.0
    design[own, 2 + applications + numbers[own]] = centred[own]
    return design
