"""Which joiners are prefilled together: those of similar length, because a group is padded to its longest prompt."""

from collections.abc import Sequence

from scheduling.costs import ServingCurves
from scheduling.request import Request


def prefill_groups(requests: Sequence[Request], curves: ServingCurves) -> list[tuple[Request, ...]]:
    """Longest first, cut where the rest would pad for longer than the fixed time of another prefill."""
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
