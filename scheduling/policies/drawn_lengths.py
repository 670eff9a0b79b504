"""A possible generation length for each of many requests, spread as their predictions say, without chance.

Predictions err, and a batch lasts as long as its longest answer. Whoever judges a decision by medians alone takes large
batches for shorter than they are.
"""

import math
from collections.abc import Iterable
from statistics import NormalDist

from scheduling.request import COVERAGE, Request

NORMAL = NormalDist()
UPPER_Z = NORMAL.inv_cdf(COVERAGE)
HIGHEST_LEVEL = 1 - 1e-6  # the quantile of level 1 is infinite; an answer has ended or reached its limit long before


def drawn_lengths(requests: Iterable[Request]) -> dict[str, int]:
    """A remaining length of each request by id; its level is the next one of the van der Corput sequence in base 2."""
    return {request.id: drawn_length(request, van_der_corput(number)) for number, request in enumerate(requests, 1)}


def drawn_length(request: Request, level: float, generated: int | None = None) -> int:
    """The quantile of this level of the remaining tokens: log-normal through the predicted median and upper quantile.

    Of a running row that has `generated` so many tokens, the quantile of answers that are longer than that.
    """
    total = min(request.predicted, request.limit), min(request.predicted_upper, request.limit)
    done = request.generated if generated is None else generated
    spread = log_spread(*total)
    if done and spread:
        outlived = NORMAL.cdf(math.log(done / total[0]) / spread)
        level = min(outlived + (1 - outlived) * level, HIGHEST_LEVEL)
    length = total[0] * math.exp(spread * NORMAL.inv_cdf(level))
    return max(1, min(round(length), request.limit) - done)


def log_spread(median: float, upper: float) -> float:
    """Standard deviation of the logarithm of a length that is log-normal through its median and upper quantile."""
    return max(0.0, math.log(upper / median)) / UPPER_Z


def van_der_corput(number: int) -> float:
    """The number's binary digits mirrored at the point: a sequence in (0, 1) that covers it evenly from the start."""
    return int(f"{number:b}"[::-1], 2) / (1 << number.bit_length())
