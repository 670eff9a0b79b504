"""A request as policies see it: lengths and instants, never a text; and the split of a batch when memory runs out."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

# One level of priority is worth these seconds of waiting: a request overtakes requests of the level below that arrived
# at most PRIORITY_S before it. A larger value favours high priorities, a smaller value bounds the wait of low ones. No
# paper names a value; this one was chosen, not tuned.
PRIORITY_S = 300.0


# The level of the upper quantile of a predicted generation length: this share of answers should end at or below it.
# With a higher level fewer batches outgrow the memory reserved for them, and fewer rows fit. Not tuned.
COVERAGE = 0.9
# The lowest first; `flex` gets the capacity that others leave, and so does `off_peak` in the service's off-peak hours.
ServiceTier = Literal["off_peak", "flex", "default", "priority"]
BACKGROUND_TIERS: frozenset[ServiceTier] = frozenset({"off_peak", "flex"})
# A tier is worth these levels of priority where one number orders all requests. Any distance above 200 keeps the tiers
# apart, because clients' priorities lie between -100 and 100.
TIER_LEVELS: Mapping[ServiceTier, int] = {"off_peak": -1000, "flex": -1000, "default": 0, "priority": 1000}


def level_of(tier: ServiceTier, priority: int) -> int:
    """Return a tier and a priority within it as one number."""
    return TIER_LEVELS[tier] + priority


def lacking(needs: Iterable[str], lacks: Collection[str]) -> list[str]:
    """Return the abilities that a request needs and an engine lacks, by name and in the order of `needs`."""
    return [ability for ability in needs if ability in lacks]


@dataclass(frozen=True, slots=True)
class Request:
    """One request as policies see it; lengths in tokens, instants in seconds of one clock.

    Raises ValueError if `length` or `limit` is below 1, or if `generated` is not below the limit.
    """

    id: str
    arrived_at: float
    length: int  # L(p): the tokens of the whole prompt, instruction included
    limit: int  # the most tokens that it may generate in total
    predicted: int  # G'(p): the median of the predicted total generation length
    predicted_upper: int  # the upper quantile of the same length, of level COVERAGE, for which memory is reserved
    generated: int = 0  # the tokens that it has generated in earlier slices; a prefill covers length + generated
    tier: ServiceTier = "default"
    priority: int = 0  # within a tier, requests with higher values go first, under policies that honour priorities
    tenant: str = ""
    deadline_at: float | None = None
    application: str = ""
    needs: frozenset[str] = frozenset()  # names of the abilities that it needs and some workers lack
    outgrew_tokens: int = 0  # the capacity of the largest worker on which it ran out of memory alone; 0: on none
    job: str = ""  # the bulk job whose line it is
    model: str = ""  # the model that answers it
    predicted_at: int = 0  # the tokens that it had generated when it was predicted; 0: it was predicted at its arrival

    def __post_init__(self) -> None:
        if self.length < 1 or self.limit < 1:
            raise ValueError(
                f"request {self.id}: length and limit must be positive, got {self.length} and {self.limit}"
            )
        if not 0 <= self.generated < self.limit:
            raise ValueError(f"request {self.id}: generated {self.generated} of at most {self.limit} tokens")

    @property
    def background(self) -> bool:
        """Return whether the request is served only with capacity that other requests leave."""
        return self.tier in BACKGROUND_TIERS

    @property
    def level(self) -> int:
        """Return tier and priority as one number; a request of a higher level may go first."""
        return level_of(self.tier, self.priority)

    @property
    def prefill(self) -> int:
        """Return the tokens that a prefill computes now: the prompt and what was generated before."""
        return self.length + self.generated

    @property
    def remaining(self) -> int:
        """Return the predicted tokens still to come, at least one, at most what the limit leaves."""
        return max(1, min(self.predicted, self.limit) - self.generated)

    @property
    def remaining_upper(self) -> int:
        """Return the upper quantile of the tokens still to come, at least `remaining`."""
        return max(self.remaining, min(self.predicted_upper, self.limit) - self.generated)


class Job(NamedTuple):
    """A tenant's bulk job; an empty id stands for the requests that belong to no job."""

    tenant: str
    id: str


class RowLength(NamedTuple):
    """A running row's total generation length as predicted when it had `at` tokens: median and upper quantile."""

    at: int
    median: int
    upper: int

    def of(self, request: Request) -> Request:
        """Return the request with this prediction in place of the one made at its arrival."""
        return replace(request, predicted=self.median, predicted_upper=self.upper, predicted_at=self.at)


def job_of(request: Request) -> Job:
    """Return the job of a background request."""
    return Job(request.tenant, request.job)


def split(requests: Sequence[Request]) -> tuple[tuple[Request, ...], ...]:
    """Split a batch evenly into two, so that requests of similar predicted generation length stay together.

    A batch of one request is returned by `to_retry`. A request therefore runs out of memory at most
    ⌈log2(batch size)⌉ + 1 times if some worker's memory holds its limit.
    """
    if len(requests) == 1:
        return (to_retry(requests),)
    by_generation = sorted(requests, key=lambda request: (request.remaining_upper, request.arrived_at, request.id))
    half = len(requests) // 2
    return tuple(by_generation[:half]), tuple(by_generation[half:])


def to_retry(requests: Sequence[Request]) -> tuple[Request, ...]:
    """Return requests that did not fit, changed as they will wait again.

    A request that did not fit alone was predicted too short: its limit becomes its prediction, so that it goes to a
    worker with that much memory.
    """
    return (reserve_limit(requests[0]),) if len(requests) == 1 else tuple(requests)


def reserve_limit(request: Request) -> Request:
    """Return the request with its limit as its predicted generation length."""
    return replace(request, predicted=request.limit, predicted_upper=request.limit)


def discard_from(halves: list[tuple[Request, ...]], request_id: str) -> bool:
    """Remove a request from the half in which it waits, and a half that is then empty; return whether a half had it."""
    for index, half in enumerate(halves):
        others = tuple(request for request in half if request.id != request_id)
        if len(others) < len(half):
            halves[index : index + 1] = [others] if others else []
            return True
    return False
