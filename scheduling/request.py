"""A request as policies see it: lengths and instants, never a text; and how batches are split when memory runs out."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

# Seconds of waiting that one level of priority is worth: a request overtakes those of the level below that arrived at
# most PRIORITY_S before it. A larger value favours high priorities, a smaller one bounds the wait of low ones. No paper
# names a value; this one was chosen, not tuned.
PRIORITY_S = 300.0


# The level of the upper quantile of a predicted generation length: the share of answers that should end at or below it.
# The higher it is, the fewer batches outgrow the memory reserved for them, and the fewer rows fit. Not tuned.
COVERAGE = 0.9
# Added to the priority of background requests, which are served with the capacity that other requests leave. Any value
# below -200 does, because clients' priorities lie between -100 and 100.
BACKGROUND_PRIORITY = -1000
ServiceTier = Literal["flex", "default", "priority"]
# Each service tier adds this to the priority of its requests, so that the tier can be told from the priority alone.
SERVICE_TIERS: Mapping[ServiceTier, int] = {"flex": BACKGROUND_PRIORITY, "default": 0, "priority": -BACKGROUND_PRIORITY}
# A tenant's requests of the tier `priority` are served with this many times its weight, beside those of all tenants and
# its own others. A larger value puts them further ahead; the tenant's quota bounds what that costs others. Not tuned.
PRIORITY_WEIGHT = 10.0
PREFERRED = "\0priority"  # ends the account of a tenant's requests of that tier; no tenant's name has a NUL


def service_tier(priority: int) -> ServiceTier:
    """Return the service tier of a request of this priority."""
    if is_background(priority):
        return "flex"
    return "priority" if priority > SERVICE_TIERS["priority"] / 2 else "default"


def is_background(priority: int) -> bool:
    """Return whether a request of this priority is served only with capacity that others leave."""
    return priority < BACKGROUND_PRIORITY / 2


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
    length: int  # L(p): tokens of the whole prompt, instruction included
    limit: int  # most tokens that it may generate in all
    predicted: int  # G'(p): median of the predicted generation length, in all
    predicted_upper: int  # its upper quantile, of level COVERAGE, for which memory is reserved
    generated: int = 0  # tokens that earlier slices generated already; a prefill then covers length + generated
    priority: int = 0  # higher values go first under policies that honour priorities
    tenant: str = ""
    deadline_at: float | None = None
    application: str = ""
    needs: frozenset[str] = frozenset()  # names of the abilities that it needs and some workers lack
    outgrew_tokens: int = 0  # capacity of the largest worker on which it ran out of memory alone; 0: none
    job: str = ""  # the bulk job whose line it is
    model: str = ""  # the model that answers it
    predicted_at: int = 0  # the tokens that it had generated when it was predicted; 0: at its arrival

    def __post_init__(self) -> None:
        if self.length < 1 or self.limit < 1:
            raise ValueError(
                f"request {self.id}: length and limit must be positive, got {self.length} and {self.limit}"
            )
        if not 0 <= self.generated < self.limit:
            raise ValueError(f"request {self.id}: generated {self.generated} of at most {self.limit} tokens")

    @property
    def background(self) -> bool:
        """Whether it is served only with capacity that other requests leave."""
        return is_background(self.priority)

    @property
    def account(self) -> str:
        """The account that its service is charged to: its tenant's, which has another one for the tier `priority`."""
        return self.tenant + PREFERRED if service_tier(self.priority) == "priority" else self.tenant

    @property
    def prefill(self) -> int:
        """Tokens that a prefill computes now: the prompt and whatever was generated before."""
        return self.length + self.generated

    @property
    def remaining(self) -> int:
        """Predicted tokens still to come, at least one, at most what the limit leaves."""
        return max(1, min(self.predicted, self.limit) - self.generated)

    @property
    def remaining_upper(self) -> int:
        """Upper quantile of the tokens still to come, at least `remaining`."""
        return max(self.remaining, min(self.predicted_upper, self.limit) - self.generated)


class RowLength(NamedTuple):
    """A running row's total generation length as predicted when it had `at` tokens: median and upper quantile."""

    at: int
    median: int
    upper: int

    def of(self, request: Request) -> Request:
        """Return the request with this prediction in place of the one made at its arrival."""
        return replace(request, predicted=self.median, predicted_upper=self.upper, predicted_at=self.at)


def split(requests: Sequence[Request]) -> tuple[tuple[Request, ...], ...]:
    """Split a batch evenly into two, requests of similar predicted generation length together.

    A batch of one request is returned as by `to_retry`. A request therefore runs out of memory at most
    ⌈log2(batch size)⌉ + 1 times wherever a worker exists that holds its limit.
    """
    if len(requests) == 1:
        return (to_retry(requests),)
    by_generation = sorted(requests, key=lambda request: (request.remaining_upper, request.arrived_at, request.id))
    half = len(requests) // 2
    return tuple(by_generation[:half]), tuple(by_generation[half:])


def to_retry(requests: Sequence[Request]) -> tuple[Request, ...]:
    """Return requests that did not fit in the form in which they wait again.

    A request that did not fit alone was predicted too short: its limit becomes its prediction, so that it goes to a
    worker with that much memory.
    """
    return (reserve_limit(requests[0]),) if len(requests) == 1 else tuple(requests)


def reserve_limit(request: Request) -> Request:
    """Return the request with its limit as its predicted generation length."""
    return replace(request, predicted=request.limit, predicted_upper=request.limit)


def discard_from(halves: list[tuple[Request, ...]], request_id: str) -> bool:
    """Remove a request from the half in which it waits, and an emptied half; return False if it is in no half."""
    for index, half in enumerate(halves):
        others = tuple(request for request in half if request.id != request_id)
        if len(others) < len(half):
            halves[index : index + 1] = [others] if others else []
            return True
    return False
