"""The values that go into an engine and come out: token ids, limits, finish reasons, figures. Imports no torch."""

import math
from dataclasses import dataclass
from typing import Literal

# "unfinished": the row goes back to the queue; "refused": it can never be answered here
FinishReason = Literal["eos", "stop", "limit", "unfinished", "removed", "refused"]

# Below this temperature a row is greedy: tokens whose logits differ by 1e-3 then differ in probability by a factor of
# e^100, and a temperature that float32 cannot hold would turn logits into infinities. vLLM has the same bound.
LEAST_TEMPERATURE = 1e-5


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one row's tokens are sampled; temperature 0 is greedy, top_k 0, top_p 1 and min_p 0 keep all tokens.

    `min_p` keeps the tokens that are at least so likely as this share of the likeliest. `repetition_penalty` divides
    the positive logits, and multiplies the negative ones, of tokens that the prompt or the answer has. Raises
    ValueError for what has no meaning; everything else can be sampled with.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.min_p <= 1 or not 0 < self.repetition_penalty < math.inf:
            raise ValueError(f"0 <= min_p <= 1, repetition_penalty must be above 0 and finite: {self}")
        if not 0 <= self.temperature < math.inf or not 0 < self.top_p <= 1 or self.top_k < 0 or (self.seed or 0) < 0:
            raise ValueError(
                f"temperature, top_k and seed must not be negative, temperature finite, 0 < top_p <= 1: {self}"
            )

    @property
    def greedy(self) -> bool:
        """Whether each step takes the likeliest token."""
        return self.temperature < LEAST_TEMPERATURE


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A generated token's natural log probability, and the (id, log probability) of the likeliest tokens there."""

    id: int
    logprob: float
    likeliest: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class JsonFormat:
    """Only text that is JSON may be generated: an object, or what `schema`, a JSON Schema as text, allows."""

    schema: str | None = None


@dataclass(frozen=True, slots=True)
class Sequence:
    """A prompt and the tokens generated for it so far; `limit` counts all generated tokens, earlier slices included.

    `turns` are the prompt's (role, content) before its encoding, for a server that takes no token ids; `priority`
    is a hint for a server that orders its own queue, higher goes first. `top_logprobs`: the log probability of each
    token is wanted, and those of so many tokens that were likeliest there; `logprobs` has those of `generated_ids`.
    `cache_salt`: only rows of the same salt may share what a server has cached of their prompts. With `ignore_eos` an
    end of sequence is a token like any other; before `min_tokens` neither it nor one of the `stop_token_ids`, which end
    the answer too, is generated. `prompt_logprobs`: also the log probabilities of the prompt's tokens are wanted.
    `continues`: its answer goes on from the prompt's text, in the middle of which it may begin.
    """

    id: str
    prompt_ids: tuple[int, ...]
    limit: int
    generated_ids: tuple[int, ...] = ()
    sampling: Sampling = Sampling()
    stop: tuple[str, ...] = ()
    turns: tuple[tuple[str, str], ...] = ()
    priority: int = 0
    format: JsonFormat | None = None
    top_logprobs: int | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    cache_salt: str = ""
    ignore_eos: bool = False
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    prompt_logprobs: bool = False
    continues: bool = False

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise ValueError(f"sequence {self.id}: the prompt is empty")
        if len(self.generated_ids) >= self.limit:
            raise ValueError(f"sequence {self.id}: {len(self.generated_ids)} of at most {self.limit} tokens generated")

    @property
    def length(self) -> int:
        """Tokens that its prefill computes: the prompt and the tokens generated before."""
        return len(self.prompt_ids) + len(self.generated_ids)


@dataclass(frozen=True, slots=True)
class FinishedSequence:
    """The result of a row that left the batch.

    `generated_ids` holds all tokens generated for it, including a final EOS or stop string. A server that tells no ids
    gives `text` and the number of its tokens instead. `refusal` is why a refused row cannot be answered. `logprobs` has
    an entry for each of the ids, where they were asked for, and so has `prompt_logprobs` for the prompt's, of which the
    first says nothing: no token is in front of it.
    """

    id: str
    generated_ids: tuple[int, ...]
    reason: FinishReason
    text: str | None = None
    text_tokens: int = 0
    refusal: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()

    @property
    def tokens(self) -> int:
        """Tokens generated for it in all."""
        return len(self.generated_ids) if self.text is None else self.text_tokens


@dataclass(frozen=True, slots=True)
class Generated:
    """What a running row has generated: the ids from the one asked for on, or all its text where no ids are told."""

    ids: tuple[int, ...]
    text: str | None
    stop: tuple[str, ...]
    continues: bool = False


@dataclass(frozen=True, slots=True)
class RunFigures:
    """What a run cost; lengths in tokens, times in seconds. Static batching computes size x iterations tokens."""

    size: int  # the most rows in the batch at once
    length: int  # batch length: the longest prefill
    iterations: int  # forward passes that gave each row a token, prefills included
    generation_length: int  # batch generation length: the most tokens that one row gained in this run
    valid_tokens: int
    pad_tokens: int  # padding computed in prefills
    invalid_tokens: int  # computed for rows that had finished
    peak_kv_bytes: int
    prefill_s: float
    decode_s: float
