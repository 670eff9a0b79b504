"""The simplest thing to say of an application: a line from the user input length to the answer's, and its spread."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]

BEYOND = 1.5  # inputs longer than this many times the longest seen are read as so long: lines do not reach further


@dataclass(frozen=True, slots=True)
class RobustLine:
    """length ≈ intercept + slope · input, off by about base_spread + spread_slope · input, all in tokens."""

    intercept: float
    slope: float
    base_spread: float
    spread_slope: float
    least_spread: float
    longest: float

    def at(self, inputs: Numbers) -> Numbers:
        """The line's lengths for these user input lengths."""
        return self.intercept + self.slope * np.minimum(inputs, BEYOND * self.longest)

    def spread(self, inputs: Numbers) -> Numbers:
        """How far off the line is at these user input lengths, as a mean absolute error."""
        spread = self.base_spread + self.spread_slope * np.minimum(inputs, self.longest)
        return np.maximum(spread, self.least_spread)


def fit_line(inputs: Numbers, lengths: Numbers) -> RobustLine:
    """The line of least absolute errors, by iterated reweighting: a few answers out of proportion do not tilt it."""
    terms = np.stack([np.ones_like(inputs), inputs], axis=1)
    weights = np.ones_like(inputs)
    line: Numbers = np.zeros(2)
    for _ in range(20):
        weighted = terms * weights[:, None]
        line = np.asarray(np.linalg.solve(weighted.T @ terms + 1e-6 * np.eye(2), weighted.T @ lengths))
        errors = np.abs(lengths - terms @ line)
        weights = 1 / np.maximum(errors, 1 + 0.1 * np.median(errors))
    longest = float(np.quantile(inputs, 0.99))
    reach = np.stack([np.ones_like(inputs), np.minimum(inputs, longest)], axis=1)
    base_spread, spread_slope = np.linalg.lstsq(reach, errors, rcond=None)[0]
    least = 0.25 * float(errors.mean()) + 0.5
    return RobustLine(float(line[0]), float(line[1]), float(base_spread), float(spread_slope), least, longest)
