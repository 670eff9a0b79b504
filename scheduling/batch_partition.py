"""Partitions requests into batches, each padded to its longest prompt.

`least_serving_time` is SCLS's serving time-oriented batching (Algorithm 1, Eq. 10). With the requests sorted by input
length, T[i] = min over sizes s of T[i - s] + T_serve(s, L_i, S): of the first i requests, the s longest are the last
batch, padded to the longest. Memory bounds s, so only the last few values of T are read.

`prefill_groups` and `groups_by_padding` choose which joiners of a continuous batch are prefilled together. One more
group costs one more forward pass, one group fewer costs padding. A simulated engine compares these costs in seconds,
from the longest prompt down; our own engine compares them in tokens, from the shortest up. The results can differ: of
many prompts of evenly spaced lengths, the simulated engine makes more and smaller groups.
"""

from collections.abc import Callable, Sequence

import numpy as np

from scheduling.costs import Floats, ServingCurves, ServingTime
from scheduling.request import Request


def least_serving_time(
    requests: Sequence[Request], slice_tokens: int, costs: ServingTime, largest_size: Callable[[int], int]
) -> list[tuple[Request, ...]]:
    """Return the batches of at most `largest_size(batch length)` requests that take the least time in total."""
    ordered = sorted(requests, key=lambda request: (request.prefill, request.arrived_at, request.id))
    total_s = np.zeros(len(ordered) + 1)
    sizes = np.zeros(len(ordered) + 1, dtype=np.int64)
    serve_s: dict[int, Floats] = {}  # the seconds of batches of 1, 2, … requests, by batch length
    for i, request in enumerate(ordered, start=1):
        length = request.prefill
        if length not in serve_s:
            every_size = np.arange(1, max(1, largest_size(length)) + 1)
            shape = np.full_like(every_size, length), np.full_like(every_size, slice_tokens)
            serve_s[length] = costs.serve_many_s(every_size, *shape)
        most = min(i, len(serve_s[length]))
        candidates = total_s[i - most : i][::-1] + serve_s[length][:most]
        best = int(candidates.argmin())  # the first minimum: the smallest of equally good batches
        total_s[i], sizes[i] = candidates[best], best + 1
    batches = []
    end = len(ordered)
    while end > 0:
        batches.append(tuple(ordered[end - sizes[end] : end]))
        end -= int(sizes[end])
    return batches


def prefill_groups(requests: Sequence[Request], curves: ServingCurves) -> list[tuple[Request, ...]]:
    """Return the prefill groups for an engine with these curves, the longest prompts first; needs a request.

    A group ends where padding all shorter prompts to the group's longest one would take longer than another prefill's
    fixed cost, which is the part of Eq. (3) that does not depend on the batch size.
    """
    token_s, _, length_s, fixed_s = curves.prefill
    by_length = sorted(requests, key=lambda request: (-request.prefill, request.arrived_at, request.id))
    groups: list[tuple[Request, ...]] = []
    first = 0
    for place in range(1, len(by_length)):
        padding = by_length[first].prefill - by_length[place].prefill
        if padding * (len(by_length) - place) * token_s > fixed_s + length_s * by_length[place].prefill:
            groups.append(tuple(by_length[first:place]))
            first = place
    return [*groups, tuple(by_length[first:])]


def groups_by_padding(lengths: Sequence[int], max_padding: int) -> list[list[int]]:
    """Return groups of indices into `lengths`, the shortest first, each with at most `max_padding` pad tokens."""
    groups: list[list[int]] = []
    tokens = 0  # the tokens of the last group's prompts, without padding
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        length = lengths[index]
        if groups and len(groups[-1]) * length - tokens <= max_padding:
            groups[-1].append(index)
            tokens += length
        else:
            groups.append([index])
            tokens = length
    return groups
