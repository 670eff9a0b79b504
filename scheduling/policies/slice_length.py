"""S of SCLS, the slice length, for a model whose lengths and costs nobody knows beforehand.

The paper sets S = 128 (5.1). A short slice repeats prefills, a long one generates tokens behind the ends of answers and
reserves memory for them. So S is chosen by what it is for: of several, the one under which requests like the recent
ones take the least time in steady state, when some of them wait for their first slice and others for a later one.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from scheduling.batch_partition import least_serving_time
from scheduling.costs import ServingTime
from scheduling.length_distributions import drawn_lengths
from scheduling.request import Request

PUBLISHED_SLICE = 128  # S in SCLS's evaluation (5.1)
SLICES = tuple(2**power for power in range(3, 12))  # finer steps change the time by less than predictions err
RECENT = 96  # requests judged by; more cost planning time: these take some tens of milliseconds. Not tuned
FEWEST = 16  # fewer would choose by chance
CHOSEN_EVERY_S = 30.0  # lengths and costs drift in minutes; any value between 10 and 120 does
MOST_PARTS = 384  # slices of all requests that one candidate is judged by; of more, every second, third … one
LEAST_GAIN = 0.02  # of the time under the present slice: less is within the error of predictions


class ChosenSlice:
    """S, chosen again every `CHOSEN_EVERY_S`, and while few requests were seen whenever their number has doubled."""

    def __init__(self) -> None:
        self.value = PUBLISHED_SLICE
        self._recent: deque[Request] = deque(maxlen=RECENT)
        self._due_at = float("-inf")
        self._due_after = FEWEST

    def see(self, request: Request) -> None:
        """Count a request among the recent ones, unless it comes back from an earlier slice."""
        if not request.generated:
            self._recent.append(request)

    def choose(self, costs: ServingTime, largest_size: Callable[[int, int], int], now: float) -> int:
        """S from now on, chosen anew if that is due; `largest_size` is of (batch length, slice)."""
        seen = len(self._recent)
        if seen >= self._due_after or (now >= self._due_at and seen >= FEWEST):
            self._due_at = now + CHOSEN_EVERY_S
            self._due_after = 2 * seen if 2 * seen <= RECENT else RECENT + 1  # which is never reached
            self.value = cheapest_slice(self._recent, self.value, costs, largest_size)
        return self.value


def cheapest_slice(
    requests: Sequence[Request], present: int, costs: ServingTime, largest_size: Callable[[int, int], int]
) -> int:
    """The S under which these requests take least; the present one unless another gains `LEAST_GAIN`."""
    drawn = drawn_lengths(requests)
    longest = max(drawn.values())
    tried = [present, *(tokens for tokens in SLICES if tokens < 2 * longest)]  # beyond, all are one slice
    seconds = [_seconds(requests, drawn, tokens, costs, largest_size) for tokens in tried]
    least = min(seconds)
    return tried[seconds.index(least)] if least < (1 - LEAST_GAIN) * seconds[0] else present


def _seconds(
    requests: Sequence[Request],
    drawn: dict[str, int],
    slice_tokens: int,
    costs: ServingTime,
    largest_size: Callable[[int, int], int],
) -> float:
    """Seconds of all slices of these requests, batched together by serving time."""
    parts = [
        replace(request, id=f"{request.id}/{done}", length=request.prefill + done, limit=1, generated=0)
        for request in requests
        for done in range(0, drawn[request.id], slice_tokens)
    ]
    every = -(-len(parts) // MOST_PARTS)
    batches = least_serving_time(parts[::every], slice_tokens, costs, lambda length: largest_size(length, slice_tokens))
    return every * sum(costs.serve_s(len(batch), max(part.length for part in batch), slice_tokens) for batch in batches)
