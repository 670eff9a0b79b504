"""What becomes of requests that ran out of memory: a batch is split in two (Magnus III-C), joiners wait again."""

from collections.abc import Sequence
from dataclasses import replace

from scheduling.request import Request


def split(requests: Sequence[Request]) -> tuple[tuple[Request, ...], ...]:
    """The batch evenly split into two, requests of similar predicted generation length together.

    A batch of one comes back as `to_retry` returns it. A request therefore runs out of memory at most
    ⌈log2(batch size)⌉ + 1 times wherever a worker exists that holds its limit.
    """
    if len(requests) == 1:
        return (to_retry(requests),)
    by_generation = sorted(requests, key=lambda request: (request.remaining_upper, request.arrived_at, request.id))
    half = len(requests) // 2
    return tuple(by_generation[:half]), tuple(by_generation[half:])


def to_retry(requests: Sequence[Request]) -> tuple[Request, ...]:
    """The requests as they wait again after they did not fit.

    A request that did not fit even alone was predicted too short. Its limit becomes its prediction, so that it goes to
    a worker that holds that much.
    """
    return (reserve_limit(requests[0]),) if len(requests) == 1 else tuple(requests)


def reserve_limit(request: Request) -> Request:
    """The same request, predicted to generate as many tokens as its limit allows."""
    return replace(request, predicted=request.limit, predicted_upper=request.limit)


def discard_from(halves: list[tuple[Request, ...]], request_id: str) -> bool:
    """Take a request out of the half that it waits in; False if it is in none. An emptied half is removed."""
    for index, half in enumerate(halves):
        others = tuple(request for request in half if request.id != request_id)
        if len(others) < len(half):
            halves[index : index + 1] = [others] if others else []
            return True
    return False
