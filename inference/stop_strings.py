"""Stop strings: where an answer ends because it says something. Imports no torch."""

from collections.abc import Sequence
from typing import Protocol


class Decoder(Protocol):
    """The part of a tokenizer that turns ids back into text."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = ...) -> str:
        """The text of these tokens."""
        ...


def says_stop(decoder: Decoder, generated_ids: Sequence[int], stop: Sequence[str]) -> bool:
    """Whether the answer contains a stop string that its last token completed.

    Every token gives at least one byte, so the last tokens of the longest stop string's bytes, and one more for a
    tokenizer that drops a leading blank, are enough to look at.
    """
    reach = max(len(text.encode()) for text in stop) + 1
    tail = decoder.decode(list(generated_ids[-reach:]), skip_special_tokens=True)
    return any(text in tail for text in stop)


def cut_at_stop(text: str, stop: Sequence[str]) -> str:
    """The answer up to its first stop string, as clients expect it."""
    ends = [end for end in map(text.find, stop) if end >= 0]
    return text[: min(ends)] if ends else text
