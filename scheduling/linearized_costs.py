"""Any estimator of serving times as curves, so that a decision weighs many requests on many workers at once."""

from functools import lru_cache

import numpy as np

from scheduling.costs import Floats, ServingCurves, ServingTime

SIZES = (1, 33)  # where an estimator is asked
LENGTHS = (32, 544)
ITERATIONS = (1, 65)

Four = tuple[float, float, float, float]


@lru_cache(maxsize=4096)
def linearized(costs: ServingTime) -> ServingCurves:
    """The curves of Eq. (3) and (4) that give an estimator's values at these sizes, lengths and iterations."""
    if isinstance(costs, ServingCurves):
        return costs
    sizes, lengths = np.repeat(SIZES, 2), np.tile(LENGTHS, 2)
    short, long = (costs.serve_many_s(sizes, lengths, np.full(4, iterations)) for iterations in ITERATIONS)
    # the iterations that `long` has beyond `short` see this many cached tokens on average
    cached = lengths + (sum(ITERATIONS) + 1) / 2
    decode = _through((long - short) / (ITERATIONS[1] - ITERATIONS[0]), cached)
    first = ServingCurves((0.0, 0.0, 0.0, 0.0), decode).serve_many_s(sizes, lengths, np.full(4, ITERATIONS[0]))
    return ServingCurves(_through(short - first, lengths.astype(np.float64)), decode)


def _through(values: Floats, lengths: Floats) -> Four:
    """(a, b, c, d) of a·n·l + b·n + c·l + d through the values at both sizes and both lengths; none is negative."""
    (few, many), (short, long) = SIZES, lengths[:2]
    few_short, few_long, many_short, many_long = values.tolist()
    a = (many_long - many_short - few_long + few_short) / ((many - few) * (long - short))
    b = (many_short - few_short) / (many - few) - a * short
    c = (few_long - few_short) / (long - short) - a * few
    d = few_short - a * few * short - b * few - c * short
    return max(0.0, a), max(0.0, b), max(0.0, c), max(0.0, d)
