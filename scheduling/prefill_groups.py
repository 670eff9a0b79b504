"""Which joiners are prefilled together: those of similar length, because a group is padded to its longest prompt.

One more group costs one more forward pass, one less costs padding. A simulated engine compares the two in seconds, from
the longest prompt down; our own engine compares them in tokens, from the shortest up. The groups can differ: of many
prompts of evenly spaced lengths the simulated engine makes more and smaller ones.
"""

from collections.abc import Sequence

from scheduling.costs import ServingCurves
from scheduling.request import Request


def prefill_groups(requests: Sequence[Request], curves: ServingCurves) -> list[tuple[Request, ...]]:
    """Groups on an engine of these curves, the longest prompts first; at least one request.

    A group ends before the request from which on padding everything shorter to the group's longest prompt would take
    longer than the part of Eq. (3) that another prefill costs whatever its size.
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
    """Groups as indices into the prompt lengths, the shortest first, each with at most so many pad tokens in all."""
    groups: list[list[int]] = []
    tokens = 0  # of the last group's prompts
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        length = lengths[index]
        if groups and len(groups[-1]) * length - tokens <= max_padding:
            groups[-1].append(index)
            tokens += length
        else:
            groups.append([index])
            tokens = length
    return groups
