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
UPPER_LOGIT = math.log(COVERAGE / (1 - COVERAGE))
CERTAIN_SPREAD = 0.02  # below, the upper quantile is within 2.6 % of the median: the answer ends where it is predicted
MOST_EXPONENT = 600.0  # of e, which a float still holds; a length beyond is cut at its limit anyway


def drawn_lengths(requests: Iterable[Request]) -> dict[str, int]:
    """A remaining length of each request by id; its level is the next one of the van der Corput sequence in base 2."""
    return {request.id: drawn_length(request, van_der_corput(number)) for number, request in enumerate(requests, 1)}


def drawn_length(request: Request, level: float, generated: int | None = None) -> int:
    """The quantile of this level of the remaining tokens: log-normal through the predicted median and upper quantile.

    Of a running row that has `generated` so many tokens, the quantile of answers that are longer than that. There the
    length is taken to be log-logistic, as in `fusion.conditional_length`: the normal's tail is too thin for rows that
    outlive their predictions.
    """
    median, upper = min(request.predicted, request.limit), min(request.predicted_upper, request.limit)
    done = request.generated if generated is None else generated
    spread = log_spread(median, upper)
    if done and spread > CERTAIN_SPREAD:
        scale = spread * UPPER_Z / UPPER_LOGIT
        outlived = math.log1p(math.exp(min(math.log(done / median) / scale, MOST_EXPONENT)))
        length = median * math.exp(min(scale * math.log(math.expm1(outlived - math.log1p(-level))), MOST_EXPONENT))
    else:
        length = median * math.exp(spread * NORMAL.inv_cdf(level))
    return max(1, min(round(length), request.limit) - done)


def log_spread(median: float, upper: float) -> float:
    """Standard deviation of the logarithm of a length that is log-normal through its median and upper quantile."""
    return max(0.0, math.log(upper / median)) / UPPER_Z


def van_der_corput(number: int) -> float:
    """The number's binary digits mirrored at the point: a sequence in (0, 1) that covers it evenly from the start."""
    return int(f"{number:b}"[::-1], 2) / (1 << number.bit_length())
