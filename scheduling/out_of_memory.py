"""What becomes of a batch that ran out of memory (Magnus III-C): two halves, or one request with its limit reserved."""

from collections.abc import Sequence
from dataclasses import replace

from scheduling.request import Request


def split(requests: Sequence[Request]) -> tuple[tuple[Request, ...], ...]:
    """The batch evenly split into two, requests of similar predicted generation length together.

    A request that did not fit even alone was predicted too short: it comes back with its limit as its prediction, so
    that it goes where that much fits. A request therefore runs out of memory at most ⌈log2(batch size)⌉ + 1 times
    wherever a worker exists that holds its limit.
    """
    if len(requests) == 1:
        return ((reserve_limit(requests[0]),),)
    by_generation = sorted(requests, key=lambda request: (request.remaining_upper, request.arrived_at, request.id))
    half = len(requests) // 2
    return tuple(by_generation[:half]), tuple(by_generation[half:])


def reserve_limit(request: Request) -> Request:
    """The same request, predicted to generate as much as it may."""
    return replace(request, predicted=request.limit, predicted_upper=request.limit)


def discard_from(halves: list[tuple[Request, ...]], request_id: str) -> bool:
    """Take a request out of whichever half it waits in; False if it is in none."""
    for place, half in enumerate(halves):
        rest = tuple(request for request in half if request.id != request_id)
        if len(rest) < len(half):
            halves[place : place + 1] = [rest] if rest else []
            return True
    return False
