"""Serving time-oriented batching: the partition into batches that takes the least time (SCLS Algorithm 1, Eq. 10).

With the requests sorted by input length, T[i] = min over sizes s of T[i - s] + T_serve(s, L_i, S): the last batch of
the first i requests is the s longest of them, padded to the longest. Memory bounds s, so this is a window over T.
"""

from collections.abc import Callable, Sequence

import numpy as np

from scheduling.costs import Floats, ServingTime
from scheduling.request import Request


def least_serving_time(
    requests: Sequence[Request], slice_tokens: int, costs: ServingTime, largest_size: Callable[[int], int]
) -> list[tuple[Request, ...]]:
    """The partition into batches of at most `largest_size(batch length)` requests that takes the least time in all."""
    ordered = sorted(requests, key=lambda request: (request.prefill, request.arrived_at, request.id))
    total_s = np.zeros(len(ordered) + 1)
    sizes = np.zeros(len(ordered) + 1, dtype=np.int64)
    serve_s: dict[int, Floats] = {}  # by batch length, of batches of 1, 2, … requests
    for i, request in enumerate(ordered, start=1):
        length = request.prefill
        if length not in serve_s:
            every_size = np.arange(1, max(1, largest_size(length)) + 1)
            shape = np.full_like(every_size, length), np.full_like(every_size, slice_tokens)
            serve_s[length] = costs.serve_many_s(every_size, *shape)
        most = min(i, len(serve_s[length]))
        candidates = total_s[i - most : i][::-1] + serve_s[length][:most]
        best = int(candidates.argmin())  # of equally good ones the first, which is the smallest batch
        total_s[i], sizes[i] = candidates[best], best + 1
    batches = []
    end = len(ordered)
    while end > 0:
        batches.append(tuple(ordered[end - sizes[end] : end]))
        end -= int(sizes[end])
    return batches
