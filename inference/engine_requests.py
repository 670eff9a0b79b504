"""The values that go into an engine and come out: token ids, limits, finish reasons, figures. Imports no torch."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from request_body import GREEDY, PLAIN, AnswerForm, Pooling, Sampling
from scheduling.request import ServiceTier, level_of

MAX_TOKEN_ID = 2**31 - 1  # the largest value of the database's int4 column; no vocabulary comes near it

# "loop": the row repeated itself, and was ended before its limit; "parked": it goes back as background work instead.
# "unfinished": the row goes back to the queue; "failed": the row goes back, and a failed attempt is counted; "refused":
# this engine can never answer the row. "landed": the engine led an answer in a format to a valid end within its limit.
FinishReason = Literal["eos", "landed", "stop", "limit", "loop", "parked", "unfinished", "failed", "removed", "refused"]


# The log probability of an impossible token: JSON has no infinity, and vLLM has the same bound.
LEAST_LOGPROB = -9999.0


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token's natural log probability, and the (id, log probability) of the likeliest tokens at the same place."""

    id: int
    logprob: float
    likeliest: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class JsonFormat:
    """The form of an answer: any JSON object, JSON that `schema` allows, or a whole text of `pattern` or `grammar`.

    `schema` is a JSON Schema as text, `pattern` a regular expression, `grammar` one of Lark or of llama.cpp's GBNF.
    Thinking in front of it, as `answer_form` describes it, is free.
    """

    schema: str | None = None
    pattern: str | None = None
    answer_form: AnswerForm = PLAIN
    grammar: str | None = None


@dataclass(frozen=True, slots=True)
class DecodingRequest:
    """A prompt and the tokens generated for it so far; `limit` counts all generated tokens, earlier slices included.

    `predicted` and `predicted_upper` are the median and the upper quantile of the answer's length as predicted at
    arrival, 0 without a prediction. `turns` are the prompt's (role, content) before its encoding, for a server that
    takes no ids. `tier` and `priority` are hints for a server that orders its rows itself; the higher priority goes
    first. `top_logprobs` asks for log probabilities: of each generated token, and of this many likeliest tokens at each
    place; `logprobs` has those of `generated_ids`. `prompt_logprobs` asks for those of the prompt's tokens too.
    Only rows of the same `cache_salt` may share cached parts of their prompts. If the request `continues`, its answer
    continues the prompt's text, and may begin in the middle of a word. `answer_form` says how thinking and text are
    marked. `adapter` names the adapter with which the model answers.
    """

    id: str
    prompt_ids: tuple[int, ...]
    limit: int
    generated_ids: tuple[int, ...] = ()
    sampling: Sampling = GREEDY
    stop: tuple[str, ...] = ()
    turns: tuple[tuple[str, str], ...] = ()
    tier: ServiceTier = "default"
    priority: int = 0
    format: JsonFormat | None = None
    top_logprobs: int | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    cache_salt: str = ""
    prompt_logprobs: bool = False
    continues: bool = False
    answer_form: AnswerForm = PLAIN
    predicted: int = 0
    predicted_upper: int = 0
    adapter: str = ""

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise ValueError(f"sequence {self.id}: the prompt is empty")
        if len(self.generated_ids) >= self.limit:
            raise ValueError(f"sequence {self.id}: {len(self.generated_ids)} of at most {self.limit} tokens generated")

    @property
    def level(self) -> int:
        """Returns the tier and the priority as one number."""
        return level_of(self.tier, self.priority)

    @property
    def prefix_salt(self) -> str:
        """Returns the salt of the row's cached blocks: rows of the same cache salt and adapter share blocks."""
        return f"{self.cache_salt}\0{self.adapter}"

    @property
    def length(self) -> int:
        """Returns the number of tokens that a prefill computes: the prompt's and those generated before."""
        return len(self.prompt_ids) + len(self.generated_ids)


@dataclass(frozen=True, slots=True)
class PoolingRequest:
    """Texts whose vectors or scores are wanted; the fields that other requests have for generated tokens are empty."""

    id: str
    texts: tuple[str, ...]
    pooling: Pooling
    tier: ServiceTier = "default"
    prompt_ids: ClassVar[tuple[int, ...]] = ()
    generated_ids: ClassVar[tuple[int, ...]] = ()
    logprobs: ClassVar[tuple[TokenLogprob, ...]] = ()
    top_logprobs: ClassVar[int | None] = None
    stop: ClassVar[tuple[str, ...]] = ()
    continues: ClassVar[bool] = False
    answer_form: ClassVar[AnswerForm] = PLAIN
    format: ClassVar[JsonFormat | None] = None

    @property
    def length(self) -> int:
        """Returns the number of tokens that the model reads."""
        return sum(self.pooling.tokens)


EngineRequest = DecodingRequest | PoolingRequest


@dataclass(frozen=True, slots=True)
class FinishedRow:
    """The result of a row that left the batch.

    `generated_ids` holds all tokens generated for the row, including a final EOS or stop string. A server that returns
    no ids gives `text` and its number of `text_tokens` instead. `refusal` says why a row failed or was refused. If the
    request asked for them, `logprobs` has an entry for each generated token, and `prompt_logprobs` for each token
    of the prompt; the first of these has no meaning, because no token precedes it. `cached_tokens` is how many of the
    prompt's tokens were not computed because an earlier prompt began with them; None if the server does not tell.
    """

    id: str
    generated_ids: tuple[int, ...]
    reason: FinishReason
    text: str | None = None
    text_tokens: int = 0
    refusal: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    cached_tokens: int | None = None

    @property
    def tokens(self) -> int:
        """Returns the number of all tokens generated for the row."""
        return len(self.generated_ids) if self.text is None else self.text_tokens


@dataclass(frozen=True, slots=True)
class Generated:
    """The output of a running row: its ids from a requested position on, or its whole text if there are no ids."""

    ids: tuple[int, ...]
    text: str | None
    stop: tuple[str, ...]
    continues: bool = False


@dataclass(frozen=True, slots=True)
class RunFigures:
    """The costs of a run; lengths in tokens, times in seconds. Static batching computes size x iterations tokens."""

    size: int = 0  # the most rows in the batch at once
    length: int = 0  # batch length: the longest prefill
    iterations: int = 0  # forward passes that gave tokens, prefills included; one that gave each row n counts n times
    generation_length: int = 0  # batch generation length: the most tokens that one row gained in this run
    valid_tokens: int = 0
    pad_tokens: int = 0  # tokens of padding computed in prefills
    invalid_tokens: int = 0  # tokens computed for rows that had finished
    peak_kv_bytes: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    guessed_tokens: int = 0  # tokens that passes computed as guesses of an answer's next tokens
    right_guesses: int = 0  # guessed tokens that were the answer's next tokens
