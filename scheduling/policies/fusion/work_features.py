"""The work of requests as sums of four features: with a worker's coefficients they become seconds.

A row's work is linear in them, so their sums suffice for any set of requests, whatever the worker's costs: rows,
prefill tokens, tokens to generate, and cached tokens summed over the iterations.
"""

import numpy as np

from scheduling.costs import Floats
from scheduling.policies.fusion.fleet_arrays import FleetArrays
from scheduling.request import Request

Features = tuple[float, float, float, float]
NOTHING: Features = (0.0, 0.0, 0.0, 0.0)


def features(request: Request) -> Features:
    """Of one request that is about to be prefilled."""
    prefill, remaining = request.prefill, request.remaining
    return 1.0, prefill, remaining, remaining * (prefill + remaining / 2)


def coefficients(fleet: FleetArrays) -> Floats:
    """Seconds that a unit of each feature takes of the fleet's mean worker.

    An iteration's fixed time goes by the share of memory, which is what limits the rows that divide it.
    """
    token_s = fleet.d1 + fleet.d4 / fleet.capacity
    return np.array([fleet.p2.mean(), fleet.p1.mean(), fleet.d2.mean(), token_s.mean()])
