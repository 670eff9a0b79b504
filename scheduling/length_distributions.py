"""Distributions of an answer's length, through its predicted median m and upper (90 %) quantile u.

The length of a request that has not begun is assumed to be log-normal. `drawn_lengths` gives each of many requests a
possible length, spread as predicted but deterministic: a batch lasts as long as its longest answer, so medians alone
underestimate large batches.

The length of a running row is assumed to be log-logistic: the log-normal's tail is too thin for rows that outlive their
predictions, and the log-logistic's conditional quantiles have a closed form. With 1/β = ln(u/m) / ln 9:

    P(G > x) = 1 / (1 + (x/m)^β)

    median given G > g          m · (1 + 2·(g/m)^β)^(1/β)
    90 % quantile given G > g   m · (9 + 10·(g/m)^β)^(1/β)

For a row that has just begun (g = 0) these are m and u. For a row that has far outlived its prediction they are 2^(1/β)
and 10^(1/β) times the tokens that it has generated. So the reservation grows in proportion to the generated tokens, by
a factor that is larger for less certain predictions; with β = 1 the median doubles, as in the system S3.
"""

import math
from collections.abc import Iterable
from statistics import NormalDist

import numpy as np

from scheduling.costs import Floats
from scheduling.request import COVERAGE, Request

NORMAL = NormalDist()
UPPER_Z = NORMAL.inv_cdf(COVERAGE)
UPPER_LOGIT = math.log(COVERAGE / (1 - COVERAGE))
CERTAIN_SPREAD = 0.02  # a prediction counts as exact below this: its upper quantile is within 2.6 % of the median
MOST_EXPONENT = 600.0  # the exponential of this still fits a float; longer lengths are cut at their limits anyway


def drawn_lengths(requests: Iterable[Request]) -> dict[str, int]:
    """Return a remaining length of each request, by id: the quantile at the request's van der Corput number."""
    return {request.id: drawn_length(request, van_der_corput(number)) for number, request in enumerate(requests, 1)}


def drawn_length(request: Request, level: float, generated: int | None = None) -> int:
    """Return the remaining tokens at this quantile of a log-normal through predicted median and upper quantile.

    For a running row with `generated` tokens, it is the quantile among the answers that are longer than that.
    """
    at, total = request.predicted_at, request.generated if generated is None else generated
    median, upper = (max(1, min(each, request.limit) - at) for each in (request.predicted, request.predicted_upper))
    done = max(0, total - at)
    spread = log_spread(median, upper)
    if done and spread > CERTAIN_SPREAD:
        scale = spread * UPPER_Z / UPPER_LOGIT
        outlived = math.log1p(math.exp(min(math.log(done / median) / scale, MOST_EXPONENT)))
        length = median * math.exp(min(scale * math.log(math.expm1(outlived - math.log1p(-level))), MOST_EXPONENT))
    else:
        length = median * math.exp(spread * NORMAL.inv_cdf(level))
    return max(1, min(at + round(length), request.limit) - total)


def expected_length(median: float, upper: float, limit: int) -> float:
    """Return the mean of a log-normal length with this median m and upper quantile that ends at the limit L ≥ m.

    With the spread σ and z = ln(L/m) / σ it is m · e^(σ²/2) · Φ(z - σ) + L · (1 - Φ(z)).
    """
    spread = log_spread(median, upper)
    if spread <= CERTAIN_SPREAD:
        return median
    z = math.log(limit / median) / spread
    return median * math.exp(spread**2 / 2) * NORMAL.cdf(z - spread) + limit * NORMAL.cdf(-z)


def log_spread(median: float, upper: float) -> float:
    """Return the standard deviation of ln(length) for a log-normal with this median and upper quantile."""
    return max(0.0, math.log(upper / median)) / UPPER_Z


def van_der_corput(number: int) -> float:
    """Return the number's binary digits mirrored at the point; the numbers 1 to n give values spread over (0, 1)."""
    return int(f"{number:b}"[::-1], 2) / (1 << number.bit_length())


UPPER_ODDS = round(COVERAGE / (1 - COVERAGE), 9)  # the odds that an answer is at most as long as its `predicted_upper`
# A prediction with a spread 1/β below this counts as certain, because divisions by smaller spreads overflow. At 0.01
# the upper quantile is 2.2 % above the median; a larger bound would ignore real uncertainty. Not tuned.
CERTAIN_LOGISTIC_SPREAD = 0.01


def conditional_totals(
    predicted: Floats, upper: Floats, generated: Floats, predicted_at: Floats | float = 0.0
) -> tuple[Floats, Floats]:
    """Return median and upper quantile of the total generation length of rows that have `generated` tokens.

    Elementwise over rows, in tokens; `predicted` and `upper` are the median and upper quantile predicted when the row
    had `predicted_at` tokens. Both results are at least `generated` + 1.
    """
    predicted, upper = np.maximum(predicted - predicted_at, 1.0), upper - predicted_at
    gained, least = np.maximum(generated - predicted_at, 1e-9), generated + 1  # 1e-9 replaces 0, which has no log
    certain = _logistic_spread(predicted, upper) < CERTAIN_LOGISTIC_SPREAD
    widened = np.where(certain, predicted * UPPER_ODDS, upper)
    median, quantile = (conditional_quantile(predicted, widened, gained, odds) for odds in (1.0, UPPER_ODDS))
    median, quantile = np.where(certain, predicted, median), np.where(certain, upper, quantile)
    return np.maximum(predicted_at + median, least), np.maximum(predicted_at + quantile, least)


def conditional_quantile(predicted: Floats, upper: Floats, generated: Floats, odds: Floats | float) -> Floats:
    """Return the length that rows with `generated` > 0 tokens exceed at odds of 1 to `odds`; `upper` > `predicted`."""
    spread = _logistic_spread(predicted, upper)
    power = np.log(generated / predicted) / spread  # ln((g/m)^β)
    return np.asarray(predicted * np.exp(spread * np.logaddexp(np.log(odds), np.log1p(odds) + power)))


def conditional_level(predicted: Floats, upper: Floats, generated: Floats, totals: Floats) -> Floats:
    """Return the probability that rows with `generated` > 0 tokens get at most `totals`; `upper` > `predicted`."""
    spread = _logistic_spread(predicted, upper)
    longer = [np.logaddexp(0.0, np.log(tokens / predicted) / spread) for tokens in (generated, totals)]
    return np.asarray(-np.expm1(longer[0] - longer[1]))


def _logistic_spread(predicted: Floats, upper: Floats) -> Floats:
    """Return 1/β of the log-logistic distribution with this median and upper quantile."""
    return np.asarray(np.log(np.maximum(upper / predicted, 1.0)) / np.log(UPPER_ODDS))
