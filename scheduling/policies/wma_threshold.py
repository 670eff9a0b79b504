"""Φ of Magnus's Algorithm 1 for a model whose lengths and costs nobody knows beforehand.

The paper gives Φ = 50,000 for its models and GPUs. WMA grows with the square of lengths: where answers are short, no
batch reaches that, and all lengths are mixed. So Φ is chosen by what it is for: of several, the one under which the
recent requests, all waiting at once, take the least time.
"""

from collections import deque
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from scheduling.adaptive_batching import AdaptiveBatcher
from scheduling.costs import ServingTime
from scheduling.request import COVERAGE, Request
from scheduling.wasted_memory_access import batch_reads

PUBLISHED_THRESHOLD = 50_000  # Φ in Magnus's evaluation (IV)
RECENT = 256  # requests judged by: some tens of batches, decided in about 60 ms; not tuned
FEWEST = 32  # some batches of them; fewer would choose by chance
CHOSEN_EVERY_S = 30.0  # lengths and costs drift in minutes; any value between 10 and 120 does
STEP = 2  # between the thresholds tried: a finer one changes the time by less than predictions err
# Of the time under the present threshold: a smaller gain does not pay for packing the waiting requests anew. Not tuned.
LEAST_GAIN = 0.02
UPPER_Z = NormalDist().inv_cdf(COVERAGE)


class ChosenThreshold:
    """Φ, chosen again every `CHOSEN_EVERY_S` from the requests seen last and the costs of the worker asked about."""

    def __init__(self) -> None:
        self.value = PUBLISHED_THRESHOLD
        self._recent: deque[Request] = deque(maxlen=RECENT)
        self._due_at = float("-inf")

    def see(self, request: Request) -> None:
        """Count a request among the recent ones."""
        self._recent.append(request)

    def choose(self, costs: ServingTime, capacity_tokens: int, max_size: int | None, now: float) -> int:
        """Φ from now on, chosen anew if that is due."""
        if now >= self._due_at and len(self._recent) >= FEWEST:
            self._due_at = now + CHOSEN_EVERY_S
            self.value = cheapest_threshold(self._recent, self.value, costs, capacity_tokens, max_size)
        return self.value


def cheapest_threshold(
    requests: Sequence[Request], present: int, costs: ServingTime, capacity_tokens: int, max_size: int | None
) -> int:
    """The Φ under which serving these requests takes least; the present one unless another gains `LEAST_GAIN`."""
    drawn = _drawn_lengths(requests)
    most = max(batch_reads(request.prefill, request.limit) for request in requests)
    tried = [present, *(STEP**power for power in range(4, most.bit_length() + 1))]
    seconds = [_serving_s(requests, drawn, threshold, costs, capacity_tokens, max_size) for threshold in tried]
    best = int(np.argmin(seconds))
    return tried[best] if seconds[best] < (1 - LEAST_GAIN) * seconds[0] else present


def _serving_s(
    requests: Sequence[Request],
    drawn: dict[str, int],
    threshold: int,
    costs: ServingTime,
    capacity_tokens: int,
    max_size: int | None,
) -> float:
    """Seconds of all batches that Algorithm 1 packs these requests into."""
    batcher = AdaptiveBatcher(threshold)
    batcher.set_limits(capacity_tokens, max_size)
    for request in requests:
        batcher.add(request)
    shapes = [
        (len(batch.requests), batch.length, max(drawn[request_id] for request_id in batch.requests))
        for batch in batcher.batches.values()
    ]
    return float(costs.serve_many_s(*np.array(shapes, np.int64).T).sum())


def _drawn_lengths(requests: Sequence[Request]) -> dict[str, int]:
    """A possible remaining length of each request: predictions err, and a batch lasts as long as its longest answer.

    Log-normal through the predicted median and upper quantile; the levels are the van der Corput sequence in base 2,
    which covers the distribution evenly without chance.
    """
    drawn = {}
    for number, request in enumerate(requests, start=1):
        level = int(f"{number:b}"[::-1], 2) / (1 << number.bit_length())
        spread = request.remaining_upper / request.remaining
        length = request.remaining * spread ** (NormalDist().inv_cdf(level) / UPPER_Z)
        drawn[request.id] = max(1, min(round(length), request.limit - request.generated))
    return drawn
