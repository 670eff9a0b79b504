"""A possible generation length for each of many requests, spread as their predictions say, without chance.

Predictions err, and a batch lasts as long as its longest answer. Whoever judges a decision by medians alone takes large
batches for shorter than they are.
"""

from collections.abc import Iterable
from statistics import NormalDist

from scheduling.request import COVERAGE, Request

NORMAL = NormalDist()
UPPER_Z = NORMAL.inv_cdf(COVERAGE)


def drawn_lengths(requests: Iterable[Request]) -> dict[str, int]:
    """A remaining length of each request by id; its level is the next one of the van der Corput sequence in base 2."""
    return {request.id: drawn_length(request, van_der_corput(number)) for number, request in enumerate(requests, 1)}


def drawn_length(request: Request, level: float) -> int:
    """The quantile of this level of the remaining tokens: log-normal through the predicted median and upper quantile."""
    spread = request.remaining_upper / request.remaining
    length = request.remaining * spread ** (NORMAL.inv_cdf(level) / UPPER_Z)
    return max(1, min(round(length), request.limit - request.generated))


def van_der_corput(number: int) -> float:
    """The number's binary digits mirrored at the point: a sequence in (0, 1) that covers it evenly from the start."""
    return int(f"{number:b}"[::-1], 2) / (1 << number.bit_length())
