"""What a policy knows of a request: lengths and instants, never a text."""

from dataclasses import dataclass

# The level of the upper quantile of a predicted generation length: the share of answers that should end at or below it.
# The higher it is, the fewer batches outgrow the memory reserved for them, and the fewer rows fit. Not tuned.
COVERAGE = 0.9
# Added to the priority of background requests, which are served with what the others leave. Any value does that is
# further away than the priorities of clients, -100 to 100, are apart.
BACKGROUND_PRIORITY = -1000


def is_background(priority: int) -> bool:
    """Whether a request of this priority is served only with capacity that others leave."""
    return priority < BACKGROUND_PRIORITY / 2


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
