"""Quantiles of durations, some of which have not ended yet: a period life table, as demographers make for one year.

Only what happened within a period counts (Kaplan and Meier's product with delayed entry): each case is at risk from its
age when the period began until it ended, or until its age now if it goes on. Without the cases that go on, long ones
would be missing whenever more cases begin than end. Any increasing function of the age works as well as the age.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

LEAST = 1e-6  # a smaller share is an error of rounding
# At least this share of the cases that end later counts as at risk. Otherwise few cases are at risk at the first ages,
# and one end among them could take the whole share. Not tuned.
LEAST_AT_RISK = 0.1
MOST_BEYOND = 2.0  # no quantile is beyond this many times the last time: further out nothing is known


class Case(NamedTuple):
    """A case at risk from the age `entered` (-inf: its beginning) to the age `left`, where it `ended` or else goes on.

    It stands for `weight` cases about which nothing else is known.
    """

    entered: float
    left: float
    ended: bool = True
    weight: float = 1.0


def period_quantiles(cases: Sequence[Case], levels: Sequence[float], spread: float) -> list[float]:
    """Return the ages by which these shares of the cases end. Ages grow with time: d(age) = d(ln time) / `spread`.

    If no case goes on, the result is the age of rank level · (n + 1), interpolated, as conformal prediction requires:
    the next case is below it with this probability. The share that goes on beyond all ages seen is expected to shrink
    as the reciprocal of time (Gott's rule for what is observed at a random moment), to half at twice the last time; no
    quantile is later than that.
    """
    entered, left, ended, weight = np.array(cases, np.float64).T
    order = np.lexsort((-ended, left))
    ages, ends, each = left[order], ended[order] > 0, weight[order]
    by_entry = np.argsort(entered)
    behind = np.append(np.cumsum(weight[by_entry][::-1])[::-1], 0.0)  # the weight that enters at this age or later
    later = np.cumsum(each[::-1])[::-1]
    at_risk = np.maximum(later - behind[np.searchsorted(entered[by_entry], ages)], LEAST_AT_RISK * later)
    goes_on = np.cumprod(np.where(ends, 1 - each / np.maximum(at_risk, each), 1.0))
    below, rest = 1 - goes_on[ends], float(goes_on[-1])
    ranks = np.array(levels) * (1 + 1 / len(cases))
    found = np.interp(ranks, below, ages[ends])
    return [
        age
        if rank <= below[-1] or rest < LEAST
        else ages[-1] + math.log(min(rest / max(1 - level, LEAST), MOST_BEYOND)) / spread
        for age, rank, level in zip(found.tolist(), ranks, levels, strict=True)
    ]
