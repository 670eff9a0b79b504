"""Stop strings: texts at which an answer ends. Imports no torch."""

from collections.abc import Sequence
from typing import Protocol


class Detokenizer(Protocol):
    """The part of a tokenizer that turns ids back into text."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = ...) -> str:
        """The text of these tokens."""
        ...


def ends_in_stop_string(detokenizer: Detokenizer, generated_ids: Sequence[int], stop: Sequence[str]) -> bool:
    """Whether the last token completed a stop string.

    Each token decodes to at least one byte, so a stop string of n bytes lies within the last n tokens. One more token
    is decoded because some tokenizers drop a leading blank.
    """
    tail_tokens = max(len(text.encode()) for text in stop) + 1
    tail = detokenizer.decode(list(generated_ids[-tail_tokens:]), skip_special_tokens=True)
    return any(text in tail for text in stop)


def cut_at_stop(text: str, stop: Sequence[str]) -> str:
    """The answer up to its first stop string, as clients expect it."""
    starts = [start for start in map(text.find, stop) if start >= 0]
    return text[: min(starts)] if starts else text
