"""How long an answer will be, given its prediction and that it has not ended after so many tokens.

The generation length G is taken to be log-logistic, the one distribution of positive numbers whose conditional
quantiles have a closed form. With median m, upper (90 %) quantile u and 1/β = ln(u/m) / ln 9:

    P(G > x) = 1 / (1 + (x/m)^β)

    median given G > g          m · (1 + 2·(g/m)^β)^(1/β)
    90 % quantile given G > g   m · (9 + 10·(g/m)^β)^(1/β)

For a row that has just begun (g = 0) these are m and u. For a row that has far outlived its prediction they are 2^(1/β)
and 10^(1/β) times the tokens that it has generated. So the reservation grows in proportion to the tokens generated, by
a factor that is the larger the less certain the prediction was; with β = 1 the median doubles, as in S3.
"""

import numpy as np

from scheduling.costs import Floats
from scheduling.request import COVERAGE

UPPER_ODDS = round(COVERAGE / (1 - COVERAGE), 9)  # the odds of the quantile that `predicted_upper` is an estimate of
# A spread 1/β below this counts as a certain prediction, because a division by it overflows as it goes to 0. At 0.01
# the upper quantile is 2.2 % above the median; larger values would ignore real uncertainty. Not tuned.
CERTAIN_SPREAD = 0.01


def conditional_totals(predicted: Floats, upper: Floats, generated: Floats) -> tuple[Floats, Floats]:
    """Median and upper quantile of the total generation length of rows that have generated so many tokens already.

    Elementwise over rows, in tokens; `predicted` and `upper` are the prediction's median and upper quantile. Both
    results are at least `generated` + 1.
    """
    spread = np.log(np.maximum(upper / predicted, 1.0)) / np.log(UPPER_ODDS)
    certain = spread < CERTAIN_SPREAD
    spread = np.where(certain, 1.0, spread)
    power = np.log(np.maximum(generated, 1e-9) / predicted) / spread  # ln((g/m)^β); 1e-9 stands for g = 0
    median = predicted * np.exp(spread * np.logaddexp(0.0, np.log(2.0) + power))
    quantile = predicted * np.exp(spread * np.logaddexp(np.log(UPPER_ODDS), np.log(UPPER_ODDS + 1) + power))
    least = generated + 1
    return np.maximum(np.where(certain, predicted, median), least), np.maximum(
        np.where(certain, upper, quantile), least
    )
