"""What the workers of one model have learned of their steps, put together as far as they agree.

A worker sees few kinds of steps in some seconds, and cannot tell an iteration's own cost from that of its cached tokens
while both grow together. So two workers that are alike learn different curves, and a policy that compares them gives
one of them all long rows. Here each takes the mean of all, unless what it measured differs by more than its error.
"""

import math
from collections.abc import Mapping

import numpy as np

from scheduling.costs import LearnedCurves, ServingCurves


def pooled_curves(learned: Mapping[str, LearnedCurves]) -> dict[str, ServingCurves]:
    """Curves of each of these workers of one model, by name: between the mean of all and the worker's own.

    With r the logarithm of own over mean seconds of its typical iteration, and s its relative error, its own count
    max(0, 1 - s²/r²) (James and Stein, 1961). In the mean, workers count by the windows that they learned from.
    """
    if not learned:
        return {}
    windows = [one.windows for one in learned.values()]
    mean = np.average([one.curves.coefficients for one in learned.values()], axis=0, weights=windows)
    return {name: _drawn_to(ServingCurves.of_coefficients(mean), one) for name, one in learned.items()}


def _drawn_to(mean: ServingCurves, learned: LearnedCurves) -> ServingCurves:
    ratio = learned.curves.decode_step_s(*learned.typical) / mean.decode_step_s(*learned.typical)
    squared = math.log(ratio) ** 2
    own_share = max(0.0, 1 - learned.error**2 / squared) if squared else 0.0
    return ServingCurves.of_coefficients(own_share * learned.curves.coefficients + (1 - own_share) * mean.coefficients)
