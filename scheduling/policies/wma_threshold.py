"""Φ of Magnus's Algorithm 1 for a model whose lengths and costs nobody knows beforehand.

The paper gives Φ = 50,000 for its models and GPUs. WMA grows with the square of lengths: where answers are short, no
batch reaches that, and all lengths are mixed. So Φ is chosen by what it is for: of several, the one under which the
recent requests, all waiting at once, take the least time.

Where an iteration costs next to nothing more for a further row, the least time mixes all lengths, and most of what is
computed is waste that is cheap today and in the way of every short request. So a smaller Φ under which `VALID_SHARE` of
the tokens are valid is preferred, if it takes at most `MOST_SLOWDOWN` longer.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduling.adaptive_batching import AdaptiveBatcher, batch_reads
from scheduling.costs import ServingTime
from scheduling.length_distributions import drawn_lengths
from scheduling.request import Request

PUBLISHED_THRESHOLD = 50_000  # Φ in Magnus's evaluation (IV)
RECENT = 256  # requests judged by: some tens of batches, decided in about 60 ms; not tuned
FEWEST = 32  # some batches of them; fewer would choose by chance
CHOSEN_EVERY_S = 30.0  # lengths and costs drift in minutes; any value between 10 and 120 does
STEP = 2  # between the thresholds tried: a finer one changes the time by less than predictions err
VALID_SHARE = 0.7  # the goal that the service sets itself: of the tokens computed by run-to-completion batches
MOST_SLOWDOWN = 0.25  # what that may cost; where predictions rank answers badly, no Φ reaches it at such a price
# Of the time under the present threshold: a smaller gain does not pay for packing the waiting requests anew. Not tuned.
LEAST_GAIN = 0.02


class ChosenThreshold:
    """Φ, chosen again every `CHOSEN_EVERY_S` from the requests seen last and the costs of the worker asked about.

    While few were seen, it is chosen again whenever their number has doubled.
    """

    def __init__(self) -> None:
        self.value = PUBLISHED_THRESHOLD
        self._recent: deque[Request] = deque(maxlen=RECENT)
        self._due_at = float("-inf")
        self._due_after = FEWEST

    def see(self, request: Request) -> None:
        """Count a request among the recent ones."""
        self._recent.append(request)

    def choose(self, costs: ServingTime, capacity_tokens: int, max_size: int | None, now: float) -> int:
        """Φ from now on, chosen anew if that is due."""
        seen = len(self._recent)
        if seen >= self._due_after or (now >= self._due_at and seen >= FEWEST):
            self._due_at = now + CHOSEN_EVERY_S
            self._due_after = 2 * seen if 2 * seen <= RECENT else RECENT + 1  # which is never reached
            self.value = cheapest_threshold(self._recent, self.value, costs, capacity_tokens, max_size)
        return self.value


@dataclass(frozen=True, slots=True)
class PackedTime:
    """What batches packed under one Φ take, and which share of the tokens that they compute is valid."""

    threshold: int
    seconds: float
    valid_share: float


def cheapest_threshold(
    requests: Sequence[Request], present: int, costs: ServingTime, capacity_tokens: int, max_size: int | None
) -> int:
    """The Φ that serves these requests best; the present one unless another gains `LEAST_GAIN` or reaches the goal."""
    drawn = drawn_lengths(requests)
    most = max(batch_reads(request.prefill, request.limit) for request in requests)
    thresholds = [present, *(STEP**power for power in range(4, most.bit_length() + 1))]
    tried = [_packed(requests, drawn, threshold, costs, capacity_tokens, max_size) for threshold in thresholds]
    best = chosen(tried)
    as_valid = tried[0].valid_share >= min(VALID_SHARE, best.valid_share)
    return present if as_valid and tried[0].seconds * (1 - LEAST_GAIN) <= best.seconds else best.threshold


def chosen(tried: Sequence[PackedTime]) -> PackedTime:
    """The fastest of those with enough valid tokens, unless the fastest of all is faster by more than that is worth."""
    fastest = min(tried, key=lambda one: (one.seconds, one.threshold))
    bearable_s = (1 + MOST_SLOWDOWN) * fastest.seconds
    valid = [one for one in tried if one.valid_share >= VALID_SHARE and one.seconds <= bearable_s]
    return min(valid, key=lambda one: (one.seconds, one.threshold), default=fastest)


def _packed(
    requests: Sequence[Request],
    drawn: dict[str, int],
    threshold: int,
    costs: ServingTime,
    capacity_tokens: int,
    max_size: int | None,
) -> PackedTime:
    """All batches that Algorithm 1 packs these requests into, one after the other."""
    batcher = AdaptiveBatcher(threshold)
    batcher.set_limits(capacity_tokens, max_size)
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
    return PackedTime(threshold, seconds, sum(drawn.values()) / float((shapes[:, 0] * shapes[:, 2]).sum()))
