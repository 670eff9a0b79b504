"""A worker's serving time as plain coefficients, so that a decision weighs many requests on many workers at once."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from scheduling.costs import Floats, ServingTime

SIZES = (1, 33)  # where an estimator is asked; a linear one is recovered exactly from any four points
LENGTHS = (32, 544)
ITERATIONS = (1, 65)


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds: of a joint prefill and of one iteration, each for the group, for a row, for a token of a row."""

    prefill_s: float
    prefill_row_s: float
    prefill_token_s: float
    step_s: float
    step_row_s: float
    step_token_s: float


@lru_cache(maxsize=4096)
def pace_of(costs: ServingTime) -> Pace:
    """The coefficients of Eq. (3) and (4) that give an estimator's values at four sizes and lengths."""
    grid = np.array([(n, length) for n in SIZES for length in LENGTHS])
    sizes, lengths = grid[:, 0], grid[:, 1]
    short, long = (costs.serve_many_s(sizes, lengths, np.full(4, iterations)) for iterations in ITERATIONS)
    # the iterations of `long` beyond those of `short` see this many cached tokens on average
    middle = lengths + (ITERATIONS[0] + ITERATIONS[1] + 1) / 2
    step = _bilinear((long - short) / (ITERATIONS[1] - ITERATIONS[0]), middle)
    first_s = step[0] * sizes * (lengths + 1) + step[1] * sizes + step[2] * (lengths + 1) + step[3]
    prefill = _bilinear(short - first_s, lengths)
    return Pace(prefill[3], prefill[1], prefill[0] + prefill[2], step[3], step[1], step[0] + step[2])


def _bilinear(values: Floats, lengths: Floats) -> tuple[float, float, float, float]:
    """(a, b, c, d) of a·n·l + b·n + c·l + d through the four values, negative ones cut off; c is a cost of the group
    that grows with its length: small where rows are many, so that adding it to `a` overstates rows only in tiny groups.
    """
    (n1, n2), (l1, l2) = SIZES, lengths[:2]
    v11, v12, v21, v22 = values
    a = (v22 - v21 - v12 + v11) / ((n2 - n1) * (l2 - l1))
    b = (v21 - v11) / (n2 - n1) - a * l1
    c = (v12 - v11) / (l2 - l1) - a * n1
    d = v11 - a * n1 * l1 - b * n1 - c * l1
    return tuple(max(0.0, float(value)) for value in (a, b, c, d))  # type: ignore[return-value]
