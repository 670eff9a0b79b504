"""Chooses, by the served model's lengths and costs, parameters that the papers fix for their own models.

Φ of Magnus's Algorithm 1 is 50,000 for the paper's models and GPUs. WMA grows with the square of lengths: where answers
are short, no batch reaches that, and all lengths are mixed. So Φ is chosen to minimise the time of the recent requests,
as if all waited at once. Where a further row adds almost nothing to an iteration, the fastest Φ also mixes all lengths:
most computed tokens are invalid, which delays every short request. So a smaller Φ with at least `VALID_SHARE` of valid
tokens is preferred, if it takes at most `MOST_SLOWDOWN` longer.

Φ and S are chosen by learned costs, which other work on a machine distorts. So two bounds hold that need no costs.
Under a chosen Φ the recent requests take no more iterations, in no smaller batches, than in batches of Eq. (1)'s size
in order of arrival. S is at least the smaller of the paper's 128 and half of the mean length.

S, the slice length of SCLS, is 128 in the paper (5.1). Short slices repeat prefills; long slices generate tokens after
the ends of answers and reserve memory for them. So S is chosen to minimise the time of requests like the recent ones in
steady state, when some wait for their first slice and others for a later one.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from scheduling.adaptive_batching import AdaptiveBatcher, batch_reads
from scheduling.batch_partition import least_serving_time
from scheduling.costs import ServingTime
from scheduling.kv_memory import KvMemory
from scheduling.length_distributions import drawn_lengths
from scheduling.request import Request

PUBLISHED_THRESHOLD = 50_000  # Φ in Magnus's evaluation (IV)
PUBLISHED_SLICE = 128  # S in SCLS's evaluation (5.1)
CHOSEN_EVERY_S = 30.0  # lengths and costs drift in minutes; any value between 10 and 120 works
# A parameter changes only if that saves this share of the time under its present value. A smaller gain is within the
# error of predictions and not worth packing the waiting requests anew. Not tuned.
LEAST_GAIN = 0.02
# Φ is chosen by this many requests, which make some tens of batches and take about 60 ms; not tuned.
THRESHOLD_REQUESTS = 256
LEAST_THRESHOLD_REQUESTS = 32  # these make some batches; with fewer requests chance would choose Φ
STEP = 2  # the ratio of two successive thresholds tried; a finer step changes the time by less than predictions err
VALID_SHARE = 0.7  # our goal for the valid share of the tokens that run-to-completion batches compute
MOST_SLOWDOWN = 0.25  # the extra share of time for the goal; with poor predictions no Φ reaches it with that
# S is chosen by this many requests, which take some tens of milliseconds of planning time; more take more. Not tuned.
SLICE_REQUESTS = 96
LEAST_SLICE_REQUESTS = 16  # with fewer requests chance would choose S
SLICES = tuple(2**power for power in range(3, 12))  # finer steps change the time by less than predictions err
MOST_PARTS = 384  # a slice length is judged by at most this many slices; of more slices every n-th is taken


class ChosenParameter:
    """A parameter that is chosen by the latest `most` requests; it has its published value until `fewest` were seen.

    It is chosen again every `CHOSEN_EVERY_S`, and while few requests were seen, whenever their number has doubled.
    """

    def __init__(self, published: int, most: int, fewest: int) -> None:
        self.value = published
        self._requests: deque[Request] = deque(maxlen=most)
        self._most, self._fewest = most, fewest
        self._due_at, self._due_after = float("-inf"), fewest

    def record(self, request: Request) -> None:
        """Count a request among the latest requests."""
        self._requests.append(request)

    def choose(self, cheapest: Callable[[Sequence[Request], int], int], now: float) -> int:
        """Return the value; if a choice is due, first set it to `cheapest(requests, present value)`."""
        seen = len(self._requests)
        if seen >= self._due_after or (now >= self._due_at and seen >= self._fewest):
            self._due_at = now + CHOSEN_EVERY_S
            self._due_after = 2 * seen if 2 * seen <= self._most else self._most + 1  # `most` + 1 is never reached
            self.value = cheapest(self._requests, self.value)
        return self.value


def chosen_threshold() -> ChosenParameter:
    """Return Φ as a parameter that `cheapest_threshold` chooses."""
    return ChosenParameter(PUBLISHED_THRESHOLD, THRESHOLD_REQUESTS, LEAST_THRESHOLD_REQUESTS)


def chosen_slice() -> ChosenParameter:
    """Return S as a parameter that `cheapest_slice` chooses; record each request only before its first slice."""
    return ChosenParameter(PUBLISHED_SLICE, SLICE_REQUESTS, LEAST_SLICE_REQUESTS)


@dataclass(frozen=True, slots=True)
class PackedTime:
    """The batches packed under one Φ: their seconds, the valid share of their tokens, their iterations and number."""

    threshold: int
    seconds: float
    valid_share: float
    iterations: int = 0
    batches: int = 1


def cheapest_threshold(
    requests: Sequence[Request],
    present: int,
    costs: ServingTime,
    memory: KvMemory,
    max_size: int | None,
    fixed_size: int = 1,
) -> int:
    """Return the best Φ for these requests: the present one, unless another gains `LEAST_GAIN` or nears `VALID_SHARE`.

    A Φ is left out if its batches take more iterations than batches of `fixed_size` in order of arrival. It is also
    left out if its batches are smaller in the mean, unless `max_size` keeps them small.
    """
    drawn = drawn_lengths(requests)
    most = max(batch_reads(request.prefill, request.limit) for request in requests)
    thresholds = [present, *(STEP**power for power in range(4, most.bit_length() + 1))]
    tried = [_packed(requests, drawn, threshold, costs, memory, max_size) for threshold in thresholds]
    lengths = list(drawn.values())
    most_iterations = sum(max(lengths[first : first + fixed_size]) for first in range(0, len(lengths), fixed_size))
    most_batches = len(lengths) if max_size else -(-len(lengths) // fixed_size)
    large = [one for one in tried if one.iterations <= most_iterations and one.batches <= most_batches] or tried[-1:]
    best = best_valid(large)
    as_valid = tried[0] in large and tried[0].valid_share >= min(VALID_SHARE, best.valid_share)
    return present if as_valid and tried[0].seconds * (1 - LEAST_GAIN) <= best.seconds else best.threshold


def best_valid(tried: Sequence[PackedTime]) -> PackedTime:
    """Return the fastest Φ with enough valid tokens, or the fastest of all if none has them within `MOST_SLOWDOWN`."""
    fastest = min(tried, key=lambda one: (one.seconds, one.threshold))
    bearable_s = (1 + MOST_SLOWDOWN) * fastest.seconds
    valid = [one for one in tried if one.valid_share >= VALID_SHARE and one.seconds <= bearable_s]
    return min(valid, key=lambda one: (one.seconds, one.threshold), default=fastest)


def _packed(
    requests: Sequence[Request],
    drawn: dict[str, int],
    threshold: int,
    costs: ServingTime,
    memory: KvMemory,
    max_size: int | None,
) -> PackedTime:
    """Pack the requests one after the other by Algorithm 1 under this Φ; return the figures of all their batches."""
    batcher = AdaptiveBatcher(threshold)
    batcher.set_limits(memory, max_size)
    for request in requests:
        batcher.add(request)
    shapes = np.array(
        [
            (len(batch.requests), batch.length, max(drawn[request_id] for request_id in batch.requests))
            for batch in batcher.batches.values()
        ],
        np.int64,
    )
    seconds = float(costs.serve_many_s(*shapes.T).sum())
    valid_share = sum(drawn.values()) / float((shapes[:, 0] * shapes[:, 2]).sum())
    return PackedTime(threshold, seconds, valid_share, int(shapes[:, 2].sum()), len(shapes))


def cheapest_slice(
    requests: Sequence[Request], present: int, costs: ServingTime, largest_size: Callable[[int, int], int]
) -> int:
    """Return the S under which these requests take least time, or the present S if the gain is below `LEAST_GAIN`."""
    drawn = drawn_lengths(requests)
    longest = max(drawn.values())
    least = min(PUBLISHED_SLICE, sum(drawn.values()) / len(drawn) / 2)
    tried: list[int] = [tokens for tokens in SLICES if least <= tokens < 2 * longest]  # above, all are one slice
    if present >= least or not tried:
        tried.insert(0, present)
    seconds = [_sliced_s(requests, drawn, tokens, costs, largest_size) for tokens in tried]
    fastest = seconds.index(min(seconds))
    return tried[fastest if seconds[fastest] < (1 - LEAST_GAIN) * seconds[0] else 0]


def _sliced_s(
    requests: Sequence[Request],
    drawn: dict[str, int],
    slice_tokens: int,
    costs: ServingTime,
    largest_size: Callable[[int, int], int],
) -> float:
    """Return the seconds of all slices of these requests, batched together by serving time."""
    parts = [
        replace(request, id=f"{request.id}/{done}", length=request.prefill + done, limit=1, generated=0)
        for request in requests
        for done in range(0, drawn[request.id], slice_tokens)
    ]
    every = -(-len(parts) // MOST_PARTS)
    batches = least_serving_time(parts[::every], slice_tokens, costs, lambda length: largest_size(length, slice_tokens))
    return every * sum(costs.serve_s(len(batch), max(part.length for part in batch), slice_tokens) for batch in batches)
