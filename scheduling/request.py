"""What a policy knows of a request: lengths and instants, never a text; and what becomes of it when memory runs out."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

# Seconds of waiting that one level of priority is worth: a request overtakes those of the level below that arrived at
# most so long before it. More helps high priorities, less bounds the wait of low ones. No paper names a value; this one
# was chosen, not tuned.
PRIORITY_S = 300.0


# The level of the upper quantile of a predicted generation length: the share of answers that should end at or below it.
# The higher it is, the fewer batches outgrow the memory reserved for them, and the fewer rows fit. Not tuned.
COVERAGE = 0.9
# Added to the priority of background requests, which are served with what the others leave. Any value does that is
# further away than the priorities of clients, -100 to 100, are apart.
BACKGROUND_PRIORITY = -1000


def is_background(priority: int) -> bool:
    """Whether a request of this priority is served only with capacity that others leave."""
    return priority < BACKGROUND_PRIORITY / 2


def lacking(needs: Iterable[str], lacks: Collection[str]) -> list[str]:
    """The abilities that a request needs and an engine lacks, by name and in the order of `needs`."""
    return [ability for ability in needs if ability in lacks]


@dataclass(frozen=True, slots=True)
class Request:
    """One request as policies see it; lengths in tokens, instants in seconds of one clock.

    Raises ValueError if the prompt or the limit is empty, or if as many tokens were generated as the limit allows.
    """

    id: str
    arrived_at: float
    length: int  # L(p): tokens of the whole prompt, instruction included
    limit: int  # most tokens that it may generate in all
    predicted: int  # G'(p): median of the predicted generation length, in all
    predicted_upper: int  # its upper quantile, of level COVERAGE, which memory is reserved for
    generated: int = 0  # tokens that earlier slices generated already; a prefill then covers length + generated
    priority: int = 0  # of two requests, a policy that honours priorities serves the one with the higher value first
    tenant: str = ""
    deadline_at: float | None = None
    application: str = ""
    needs: frozenset[str] = frozenset()  # what its worker must be able to do and some cannot, by name
    outgrew_tokens: int = 0  # what the largest worker holds on which it ran out of memory alone; 0: on none

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
