"""A row of the running batch, as the host knows it: its tokens so far, and why it finished."""

from collections.abc import Iterable

from inference.engine_errors import SequenceTooLong
from inference.local.sampling import uniform_numbers
from inference.sequences import FinishedSequence, FinishReason, Sequence
from inference.stop_strings import Detokenizer, ends_in_stop_string
from scheduling.prefill_groups import groups_by_padding

PASS_TOKENS = 64  # a forward pass costs as much as so many tokens more in one (45 to 67 with 0.7 M to 30 M parameters)


class BatchRow:
    """A sequence being generated; `finish_reason` is None while it runs."""

    __slots__ = ("entry_number", "finish_reason", "generated", "limit", "new_tokens", "sequence", "uniforms")

    def __init__(self, sequence: Sequence, entry_number: int, max_positions: int) -> None:
        """`entry_number` orders rows by when they entered the engine; raises SequenceTooLong."""
        if sequence.length >= max_positions:
            raise SequenceTooLong(sequence.id, sequence.length, max_positions)
        self.sequence, self.entry_number = sequence, entry_number
        self.generated = list(sequence.generated_ids)
        self.new_tokens = 0  # generated since it entered the engine
        self.limit = min(sequence.limit, max_positions - len(sequence.prompt_ids))
        self.uniforms = [] if sequence.sampling.greedy else uniform_numbers(sequence.sampling, sequence.limit)
        self.finish_reason: FinishReason | None = None

    @property
    def running(self) -> bool:
        """Whether it gets another token."""
        return self.finish_reason is None

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Prompt and answer so far: what a prefill computes."""
        return (*self.sequence.prompt_ids, *self.generated)

    @property
    def cached_tokens(self) -> int:
        """Tokens that the KV cache holds while it runs: all but the newest, which the next forward pass writes."""
        return len(self.sequence.prompt_ids) + len(self.generated) - 1

    def append(self, token: int, eos_ids: frozenset[int], detokenizer: Detokenizer) -> bool:
        """Add the next token; returns whether it was the last one."""
        self.generated.append(token)
        self.new_tokens += 1
        if token in eos_ids:
            self.finish_reason = "eos"
        elif self.sequence.stop and ends_in_stop_string(detokenizer, self.generated, self.sequence.stop):
            self.finish_reason = "stop"
        elif len(self.generated) >= self.limit:
            self.finish_reason = "limit"
        return self.finish_reason is not None

    def result(self) -> FinishedSequence:
        """What the caller gets; the reason of a running row is `unfinished`."""
        return FinishedSequence(self.sequence.id, tuple(self.generated), self.finish_reason or "unfinished")


def of_similar_length(rows: Iterable[BatchRow]) -> list[list[BatchRow]]:
    """Rows grouped for prefill so that the padding of a group costs less than one more forward pass would."""
    joiners = list(rows)
    groups = groups_by_padding([len(row.token_ids) for row in joiners], PASS_TOKENS)
    return [[joiners[index] for index in group] for group in groups]
