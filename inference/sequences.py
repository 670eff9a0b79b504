"""The values that go into an engine and come out: token ids, limits, finish reasons, figures. Imports no torch."""

from dataclasses import dataclass
from typing import Literal

from request_body import GREEDY, PLAIN, AnswerForm, Pooling, Sampling

# "unfinished": the row goes back to the queue; "refused": this engine can never answer it
FinishReason = Literal["eos", "stop", "limit", "unfinished", "removed", "refused"]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A generated token's natural log probability, and the (id, log probability) of the likeliest tokens there."""

    id: int
    logprob: float
    likeliest: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class JsonFormat:
    """The form of an answer: any JSON object, JSON that `schema` allows, or a text that `pattern` matches as a whole.

    `schema` is a JSON Schema as text, `pattern` a regular expression. Thinking in front of it, as `answer_form`
    describes it, is free.
    """

    schema: str | None = None
    pattern: str | None = None
    answer_form: AnswerForm = PLAIN


@dataclass(frozen=True, slots=True)
class Sequence:
    """A prompt and the tokens generated for it so far; `limit` counts all generated tokens, earlier slices included.

    `predicted` and `predicted_upper` are the median and upper quantile of their number as predicted at its arrival, 0
    without a prediction. `turns` are the prompt's (role, content) before its encoding, for a server that takes no ids.
    `priority` is a hint for a server that orders its own queue; higher goes first. With `top_logprobs`, the log
    probability of each token is wanted, and those of this many tokens that were likeliest there; `logprobs` has those
    of `generated_ids`. With `prompt_logprobs`, those of the prompt's tokens are wanted too. Only rows of the same
    `cache_salt` may share cached parts of their prompts. If it `continues`, the answer continues the prompt's text, and
    may begin in the middle of a word. `answer_form` says how thinking and text are marked.
    With `pooling`, vectors or scores of the `texts` are wanted instead of tokens, and `prompt_ids` are empty. `adapter`
    names the adapter by which the model answers.
    """

    id: str
    prompt_ids: tuple[int, ...]
    limit: int
    generated_ids: tuple[int, ...] = ()
    sampling: Sampling = GREEDY
    stop: tuple[str, ...] = ()
    turns: tuple[tuple[str, str], ...] = ()
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
    texts: tuple[str, ...] = ()
    pooling: Pooling | None = None
    adapter: str = ""

    def __post_init__(self) -> None:
        if not self.prompt_ids and self.pooling is None:
            raise ValueError(f"sequence {self.id}: the prompt is empty")
        if len(self.generated_ids) >= self.limit:
            raise ValueError(f"sequence {self.id}: {len(self.generated_ids)} of at most {self.limit} tokens generated")

    @property
    def prefix_salt(self) -> str:
        """Returns the salt of its cached blocks: rows share them if both their cache salt and adapter are the same."""
        return f"{self.cache_salt}\0{self.adapter}"

    @property
    def length(self) -> int:
        """Returns the tokens that its prefill computes: the prompt and the tokens generated before."""
        read = len(self.prompt_ids) if self.pooling is None else sum(self.pooling.tokens)
        return read + len(self.generated_ids)


@dataclass(frozen=True, slots=True)
class FinishedSequence:
    """The result of a row that left the batch.

    `generated_ids` holds all tokens generated for it, including a final EOS or stop string. A server that returns no
    ids gives `text` and the number of its tokens instead. `refusal` is why a refused row cannot be answered. `logprobs`
    has an entry for each of the ids, where they were asked for, and so has `prompt_logprobs` for the prompt's, whose
    first entry has no meaning, because no token precedes it. `cached_tokens` is how many of the prompt's tokens were
    not computed, because an earlier prompt began with them; None if the server does not say so.
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
        """Returns all tokens generated for it."""
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

    size: int  # the most rows in the batch at once
    length: int  # batch length: the longest prefill
    iterations: int  # forward passes that gave each row a token, prefills included; several if they gave several
    generation_length: int  # batch generation length: the most tokens that one row gained in this run
    valid_tokens: int
    pad_tokens: int  # tokens of padding computed in prefills
    invalid_tokens: int  # tokens computed for rows that had finished
    peak_kv_bytes: int
    prefill_s: float
    decode_s: float
    guessed_tokens: int = 0  # tokens that passes computed as guesses of an answer's next tokens
    right_guesses: int = 0  # those that came true
