"""A row of the running batch in host memory: its tokens so far, its limits, and why it finished."""

from collections.abc import Iterable

from llguidance import LLMatcher
from torch import Tensor

from inference.answer_text import Detokenizer, ends_in_stop_string
from inference.engine_errors import SequenceTooLong
from inference.local.sampling import uniform_numbers
from inference.sequences import FinishedSequence, FinishReason, Sequence, TokenLogprob
from scheduling.batch_partition import groups_by_padding

PASS_TOKENS = 64  # tokens in a pass that cost as much as one more pass (45 to 67 with 0.7 M to 30 M parameters)


class BatchRow:
    """A sequence being generated; `finish_reason` is None while it runs."""

    __slots__ = (
        "asks_of_logits",
        "entry_number",
        "finish_reason",
        "generated",
        "limit",
        "logprobs",
        "matcher",
        "new_tokens",
        "prompt_logprobs",
        "refusal",
        "seen",
        "sequence",
        "uniforms",
    )

    def __init__(
        self, sequence: Sequence, entry_number: int, max_positions: int, matcher: LLMatcher | None = None
    ) -> None:
        """Raises SequenceTooLong; `entry_number` orders rows by when they entered the engine.

        `matcher` holds the answer to a format, and has consumed the tokens generated before.
        """
        if sequence.length >= max_positions:
            raise SequenceTooLong(sequence.id, sequence.length, max_positions)
        self.sequence, self.entry_number = sequence, entry_number
        self.generated = list(sequence.generated_ids)
        self.new_tokens = 0  # generated since it entered the engine
        self.limit = min(sequence.limit, max_positions - len(sequence.prompt_ids))
        self.uniforms = [] if sequence.sampling.greedy else uniform_numbers(sequence.sampling, sequence.limit)
        self.matcher = matcher
        self.seen: Tensor | None = None  # [vocabulary] whether prompt or answer contain a token, if a penalty needs it
        self.logprobs = list(sequence.logprobs)  # log probabilities of `generated`, if requested
        self.prompt_logprobs: tuple[TokenLogprob, ...] = ()
        self.asks_of_logits = (  # computed once, so that a step checks one attribute of each row
            matcher is not None or sequence.top_logprobs is not None or sequence.sampling.changes_logits
        )
        self.finish_reason: FinishReason | None = None
        self.refusal = ""

    @property
    def running(self) -> bool:
        """Whether the row gets another token."""
        return self.finish_reason is None

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The tokens of the prompt and of the answer so far, which a prefill computes."""
        return (*self.sequence.prompt_ids, *self.generated)

    @property
    def cached_tokens(self) -> int:
        """Tokens of the row in the KV cache: all but the newest, which the next forward pass writes."""
        return len(self.sequence.prompt_ids) + len(self.generated) - 1

    def ends(self, eos_ids: frozenset[int]) -> frozenset[int]:
        """Returns the tokens that end this row's answer: the model's `eos_ids`, or what the request asks for."""
        asked = self.sequence.sampling
        if not asked.ignore_eos and not asked.stop_token_ids:
            return eos_ids
        return frozenset(asked.stop_token_ids) | (frozenset() if asked.ignore_eos else eos_ids)

    def refuse(self, why: str) -> None:
        """Finishes a row that this engine can never answer."""
        self.finish_reason, self.refusal = "refused", why

    def append(self, token: int, eos_ids: frozenset[int], detokenizer: Detokenizer) -> bool:
        """Adds the next token; returns whether it was the last one."""
        self.generated.append(token)
        self.new_tokens += 1
        if self.seen is not None:
            self.seen[token] = True
        if token in self.ends(eos_ids):
            self.finish_reason = "eos"
        elif self.matcher is not None and not self.matcher.consume_token(token):
            self.refuse(matcher_error(self.matcher))
        elif self.sequence.stop and ends_in_stop_string(detokenizer, self.generated, self.sequence.stop):
            self.finish_reason = "stop"
        elif len(self.generated) >= self.limit:
            self.finish_reason = "limit"
        return self.finish_reason is not None

    def result(self) -> FinishedSequence:
        """Returns the row as callers get it; the reason of a running row is `unfinished`."""
        return FinishedSequence(
            self.sequence.id,
            tuple(self.generated),
            self.finish_reason or "unfinished",
            refusal=self.refusal,
            logprobs=tuple(self.logprobs),
            prompt_logprobs=self.prompt_logprobs,
        )


def matcher_error(matcher: LLMatcher) -> str:
    """Returns the first line of the error because of which a matcher gave up."""
    return f"its format cannot be kept to: {matcher.get_error().partition(chr(10))[0]}"


def of_similar_length(rows: Iterable[BatchRow]) -> list[list[BatchRow]]:
    """Groups rows for prefill so that the padding of a group costs less than one more forward pass."""
    joiners = list(rows)
    groups = groups_by_padding([len(row.token_ids) for row in joiners], PASS_TOKENS)
    return [[joiners[index] for index in group] for group in groups]
