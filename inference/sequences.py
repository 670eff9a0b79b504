"""What goes into an engine and what comes out: token ids, limits, reasons, figures. Imports no torch."""

from dataclasses import dataclass
from typing import Literal

EndReason = Literal["eos", "stop", "limit", "unfinished", "removed"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one row's tokens are drawn; temperature 0 is greedy, top_k 0 and top_p 1 keep the whole vocabulary."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.temperature < 0 or not 0 < self.top_p <= 1 or self.top_k < 0:
            raise ValueError(f"temperature and top_k must not be negative, 0 < top_p <= 1: {self}")

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken without chance."""
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True)
class Sequence:
    """A prompt and what was generated for it so far; `limit` counts all generated tokens, earlier slices included."""

    id: str
    prompt_ids: tuple[int, ...]
    limit: int
    generated_ids: tuple[int, ...] = ()
    sampling: Sampling = Sampling()
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise ValueError(f"sequence {self.id}: the prompt is empty")
        if len(self.generated_ids) >= self.limit:
            raise ValueError(f"sequence {self.id}: {len(self.generated_ids)} of at most {self.limit} tokens generated")

    @property
    def length(self) -> int:
        """Tokens that a prefill computes: the prompt and whatever was generated before."""
        return len(self.prompt_ids) + len(self.generated_ids)


@dataclass(frozen=True, slots=True)
class FinishedSequence:
    """A row that left; `generated_ids` holds all of its tokens, a final EOS or stop string included."""

    id: str
    generated_ids: tuple[int, ...]
    reason: EndReason


@dataclass(frozen=True, slots=True)
class RunFigures:
    """What a run cost; lengths in tokens, times in seconds. Run to completion computes size x iterations tokens."""

    size: int  # rows, at most at once
    length: int  # batch length: the longest prefill
    iterations: int  # forward passes that gave each row a token, the prefill's included
    generation_length: int  # batch generation length: most tokens that one row gained
    valid_tokens: int
    pad_tokens: int  # padding that prefills computed
    invalid_tokens: int  # computed for rows that had ended
    peak_kv_bytes: int
    prefill_s: float
    decode_s: float
