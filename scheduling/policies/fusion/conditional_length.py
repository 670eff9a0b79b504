"""How long an answer will be, given what was predicted and that it has come so far without ending.

The total is taken for log-logistic, the one distribution of positive numbers whose conditional quantiles have a closed
form. With median m, upper (90 %) quantile u and 1/β = ln(u/m) / ln 9:

    P(G > x) = 1 / (1 + (x/m)^β)

    median given G > g          m · (1 + 2·(g/m)^β)^(1/β)
    90 % quantile given G > g   m · (9 + 10·(g/m)^β)^(1/β)

A row that has just begun (g = 0) has m and u. One that has outlived its prediction by far has 2^(1/β) and 10^(1/β)
times what it has: the reservation grows in proportion (S3's doubling where β = 1), by more the less sure the prediction
was.
"""

import numpy as np

from scheduling.costs import Floats
from scheduling.request import COVERAGE

UPPER_ODDS = round(COVERAGE / (1 - COVERAGE), 9)  # 9 answers end within `predicted_upper` for one that does not
CERTAIN = 0.01  # a narrower spread is taken for a certain prediction


def conditional_totals(predicted: Floats, upper: Floats, generated: Floats) -> tuple[Floats, Floats]:
    """Median and upper quantile of generation lengths, in all, of rows of which this much is generated."""
    spread = np.log(np.maximum(upper / predicted, 1.0)) / np.log(UPPER_ODDS)
    sure = spread < CERTAIN
    spread = np.where(sure, 1.0, spread)
    power = np.log(np.maximum(generated, 1e-9) / predicted) / spread
    median = predicted * np.exp(spread * np.logaddexp(0.0, np.log(2.0) + power))
    quantile = predicted * np.exp(spread * np.logaddexp(np.log(UPPER_ODDS), np.log(UPPER_ODDS + 1) + power))
    least = generated + 1
    return np.maximum(np.where(sure, predicted, median), least), np.maximum(np.where(sure, upper, quantile), least)
