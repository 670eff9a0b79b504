"""Any estimator of serving times as SCLS's curves, so that many requests on many workers can be weighed at once."""

from functools import lru_cache

import numpy as np

from scheduling.costs import Floats, ServingCurves, ServingTime

# Where an estimator is sampled: batch sizes, batch lengths, iterations. A linear one gives the same curves wherever it
# is sampled; of any other the curves are right at these points. They span small to ordinary batches and are not tuned.
SIZES = (1, 33)
LENGTHS = (32, 544)
ITERATIONS = (1, 65)

Coefficients = tuple[float, float, float, float]


@lru_cache(maxsize=4096)  # more than the workers of any fleet, each with an estimator of its own
def linearized(costs: ServingTime) -> ServingCurves:
    """The curves of SCLS Eq. (3) and (4) through an estimator's values at the sampled points; never falling."""
    if isinstance(costs, ServingCurves):
        return costs
    sizes, lengths = np.repeat(SIZES, 2), np.tile(LENGTHS, 2)
    short, long = (costs.serve_many_s(sizes, lengths, np.full(4, iterations)) for iterations in ITERATIONS)
    # the iterations that `long` has beyond `short` see this many cached tokens on average
    cached = lengths + (sum(ITERATIONS) + 1) / 2
    decode = _bilinear_fit((long - short) / (ITERATIONS[1] - ITERATIONS[0]), cached)
    first = ServingCurves((0.0, 0.0, 0.0, 0.0), decode).serve_many_s(sizes, lengths, np.full(4, ITERATIONS[0]))
    return ServingCurves(_bilinear_fit(short - first, lengths.astype(np.float64)), decode)


def _bilinear_fit(values: Floats, lengths: Floats) -> Coefficients:
    """(a, b, c, d) of a·n·l + b·n + c·l + d through the values at both sizes and both lengths; none is negative."""
    (few, many), (short, long) = SIZES, lengths[:2]
    few_short, few_long, many_short, many_long = values.tolist()
    a = (many_long - many_short - few_long + few_short) / ((many - few) * (long - short))
    b = (many_short - few_short) / (many - few) - a * short
    c = (few_long - few_short) / (long - short) - a * few
    d = few_short - a * few * short - b * few - c * short
    return max(0.0, a), max(0.0, b), max(0.0, c), max(0.0, d)
