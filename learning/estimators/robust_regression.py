"""Robust linear regression of an application's answer lengths on user input lengths, with the size of its errors."""

from dataclasses import dataclass

import numpy as np

from scheduling.costs import Floats

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
