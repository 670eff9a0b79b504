"""Regressions: a kernel ridge with leave-one-out errors, a robust line, a line of logarithms with priors."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve

from learning.features.length_predictor import Arrays
from scheduling.costs import Floats, Ints

# The ridge's λ. A larger λ draws the weights of rare words closer to 0; not tuned.
PENALTY = 2.0

ITERATIONS = 20  # number of reweightings; more come closer to least absolute errors and cost time; not tuned
# this quantile of the inputs counts as the longest input, so that a single very long one does not bound the line
LONGEST_QUANTILE = 0.99
EXTRAPOLATION = 1.5  # inputs count as at most this many times the longest, which bounds errors; not tuned
# Errors are divided by the spread, but the line that is fitted to the spread may fall below 0. So the spread is at
# least this share of the mean error plus this number of tokens. Neither was tuned.
LEAST_SPREAD_SHARE, LEAST_SPREAD_TOKENS = 0.25, 0.5

# An application with this many answers gets its own terms; one or two answers say little about further ones.
FEWEST_ANSWERS = 3
# Each term's prior counts as this many answers. On 668 answers of a real model, from the 60th on, MAE and tau were the
# same within 3 % for slope priors from 3 to 100 and application offset priors from 0.5 to 2. Before the 60th answer a
# weak prior on slopes ranks worse.
OFFSET_PRIOR, SLOPE_PRIOR = 0.1, 30.0
APPLICATION_OFFSET_PRIOR, APPLICATION_SLOPE_PRIOR = 1.0, 30.0
MOST_LEVERAGE = 0.95  # bounds the leave-one-out errors of answers that alone determine a term


def fit_ridge(products: Floats, targets: Floats) -> tuple[Floats, Floats]:
    """Return dual weights (rows,) and leave-one-out predictions (rows,) from the products of all pairs of rows.

    With fewer rows than dimensions this dual form is faster than the primal one. The dual weights sum to 0, so a
    column's weight is the product of the column and the dual weights. With G = (K + λI)⁻¹, where K are the products of
    the centred rows, a ridge that was fitted without row i predicts y_i - (G y)_i / G_ii for row i.
    """
    means = products.mean(axis=0)
    centred = products - means - means[:, None] + means.mean()
    factor = cho_factor(centred + PENALTY * np.eye(len(products)), lower=True)
    inverse = cho_solve(factor, np.eye(len(products)))
    dual = inverse @ (targets - targets.mean())
    return dual, targets - dual / np.diag(inverse)


@dataclass(frozen=True, slots=True)
class RobustRegression:
    """length ≈ intercept + slope · input, with a mean absolute error of spread_intercept + spread_slope · input.

    Lengths, inputs and errors are in tokens. The fields are numbers, or arrays with one value for each input.
    """

    intercept: float
    slope: float
    spread_intercept: float
    spread_slope: float
    least_spread: float
    longest_input: float

    def predict(self, inputs: Floats) -> Floats:
        """Return the expected answer lengths for these user input lengths."""
        return self.intercept + self.slope * np.minimum(inputs, EXTRAPOLATION * self.longest_input)

    def spread(self, inputs: Floats) -> Floats:
        """Return the mean absolute error at these user input lengths."""
        spread = self.spread_intercept + self.spread_slope * np.minimum(inputs, self.longest_input)
        return np.maximum(spread, self.least_spread)


def fit_robust_regression(inputs: Floats, lengths: Floats) -> RobustRegression:
    """Fit least absolute errors by iteratively reweighted least squares: a few outliers do not tilt the line."""
    terms = np.stack([np.ones_like(inputs), inputs], axis=1)
    weights = np.ones_like(inputs)
    line: Floats = np.zeros(2)
    for _ in range(ITERATIONS):
        weighted = terms * weights[:, None]
        # 1e-6 keeps the equations solvable if all inputs have the same length
        line = np.asarray(np.linalg.solve(weighted.T @ terms + 1e-6 * np.eye(2), weighted.T @ lengths))
        errors = np.abs(lengths - terms @ line)
        # the lower bound keeps answers with errors near 0 from getting all of the weight
        weights = 1 / np.maximum(errors, 1 + 0.1 * np.median(errors))
    longest = float(np.quantile(inputs, LONGEST_QUANTILE))
    error_terms = np.stack([np.ones_like(inputs), np.minimum(inputs, longest)], axis=1)
    spread_intercept, spread_slope = np.linalg.lstsq(error_terms, errors, rcond=None)[0]
    least = LEAST_SPREAD_SHARE * float(errors.mean()) + LEAST_SPREAD_TOKENS
    return RobustRegression(
        float(line[0]), float(line[1]), float(spread_intercept), float(spread_slope), least, longest
    )


@dataclass(frozen=True, slots=True)
class LogRegression:
    """Predicts answer lengths from the first answers on:

        log length = log input length + offset + slope · (log input length - its mean).

    Offset and slope are sums of a part that all applications share and of a part of the application, if it has a few
    answers. The prior pulls all parts towards 0: without answers the user input length is predicted. `terms` are the
    shared offset and slope, then the offsets of `applications`, then their slopes.
    """

    applications: npt.NDArray[np.str_]
    centre: float  # mean logarithm of the input lengths
    terms: Floats  # (2 + 2 · applications,)

    def predict(self, applications: Sequence[str], inputs: Floats) -> Floats:
        """Return the logarithm of each answer's length."""
        logs = np.log(np.maximum(inputs, 1))
        return np.asarray(logs + _design(self.applications, applications, logs - self.centre) @ self.terms)

    def to_arrays(self) -> Arrays:
        """Return the state for `learning.store`."""
        return {"log_applications": self.applications, "log_terms": np.concatenate([[self.centre], self.terms])}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> "LogRegression":
        """Return the stored regression; models of earlier releases have none, and get a regression without answers."""
        if "log_terms" not in arrays:
            return NO_ANSWERS
        centre, *terms = arrays["log_terms"].tolist()
        return cls(arrays["log_applications"], centre, np.array(terms))


NO_ANSWERS = LogRegression(np.array([], str), 0.0, np.zeros(2))


def fit_log_regression(applications: Sequence[str], inputs: Floats, lengths: Floats) -> tuple[LogRegression, Floats]:
    """Return the regression, and each answer's leave-one-out error of its length's logarithm."""
    if not len(lengths):
        return NO_ANSWERS, np.zeros(0)
    counts = Counter(applications)
    own = np.array(sorted(name for name, count in counts.items() if count >= FEWEST_ANSWERS), str)
    logs = np.log(np.maximum(inputs, 1))
    centre = float(logs.mean())
    design = _design(own, applications, logs - centre)
    prior = [OFFSET_PRIOR, SLOPE_PRIOR] + [APPLICATION_OFFSET_PRIOR] * len(own) + [APPLICATION_SLOPE_PRIOR] * len(own)
    inverse = np.linalg.inv(design.T @ design + np.diag(prior))
    targets = np.log(np.maximum(lengths, 1)) - logs
    terms = inverse @ (design.T @ targets)
    leverage = np.einsum("ij,jk,ik->i", design, inverse, design)
    errors = (targets - design @ terms) / (1 - np.minimum(leverage, MOST_LEVERAGE))
    return LogRegression(own, centre, terms), np.asarray(errors)


def _design(known: npt.NDArray[np.str_], applications: Sequence[str], centred: Floats) -> Floats:
    """Return a row for each answer: 1 in the columns of its offsets, its centred log input in those of its slopes."""
    columns = {str(name): column for column, name in enumerate(known)}
    numbers: Ints = np.array([columns.get(name, -1) for name in applications], np.int64)
    own = np.flatnonzero(numbers >= 0)
    design = np.zeros((len(numbers), 2 + 2 * len(known)))
    design[:, 0], design[:, 1] = 1.0, centred
    design[own, 2 + numbers[own]] = 1.0
    design[own, 2 + len(known) + numbers[own]] = centred[own]
    return design
