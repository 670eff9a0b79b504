"""A row of a running batch as the host knows it: its tokens so far, and when it ends."""

from collections.abc import Iterable

from inference.engine_errors import SequenceTooLong
from inference.local.sampling import uniforms
from inference.sequences import EndReason, FinishedSequence, Sequence
from inference.stop_strings import Decoder, says_stop
from scheduling.prefill_groups import groups_by_padding

PASS_TOKENS = 64  # a forward pass costs as much as so many tokens more in one (45 to 67 with 0.7 M to 30 M parameters)


class BatchRow:
    """A sequence being generated; once `ended` is set it only holds a place."""

    __slots__ = ("chances", "ended", "gained", "generated", "limit", "number", "sequence")

    def __init__(self, sequence: Sequence, number: int, max_positions: int) -> None:
        if sequence.length >= max_positions:
            raise SequenceTooLong(sequence.id, sequence.length, max_positions)
        self.sequence, self.number = sequence, number
        self.generated = list(sequence.generated_ids)
        self.gained = 0  # tokens since it entered this engine
        self.limit = min(sequence.limit, max_positions - len(sequence.prompt_ids))
        self.chances = [] if sequence.sampling.greedy else uniforms(sequence.sampling, sequence.limit)
        self.ended: EndReason | None = None

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Prompt and answer so far: what a prefill computes."""
        return (*self.sequence.prompt_ids, *self.generated)

    @property
    def cached(self) -> int:
        """Tokens that the KV cache holds while it runs: all but the newest, which the next pass feeds."""
        return len(self.sequence.prompt_ids) + len(self.generated) - 1

    def accept(self, token: int, eos_ids: frozenset[int], decoder: Decoder) -> bool:
        """Take the next token and say whether it was the last."""
        self.generated.append(token)
        self.gained += 1
        if token in eos_ids:
            self.ended = "eos"
        elif self.sequence.stop and says_stop(decoder, self.generated, self.sequence.stop):
            self.ended = "stop"
        elif len(self.generated) >= self.limit:
            self.ended = "limit"
        return self.ended is not None

    def result(self) -> FinishedSequence:
        """What the caller gets; a row that has not ended is unfinished."""
        return FinishedSequence(self.sequence.id, tuple(self.generated), self.ended or "unfinished")


def of_similar_length(rows: Iterable[BatchRow]) -> list[list[BatchRow]]:
    """Rows grouped for prefill so that the padding of a group costs less than one more forward pass would."""
    joiners = list(rows)
    groups = groups_by_padding([len(row.token_ids) for row in joiners], PASS_TOKENS)
    return [[joiners[index] for index in group] for group in groups]
