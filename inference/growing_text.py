"""The text of an answer while its tokens come: only what no later token can change. Imports no torch."""

from collections.abc import Callable, Sequence

from inference.stop_strings import cut_at_stop

UNDECODED = "\N{REPLACEMENT CHARACTER}"  # what the bytes of an unfinished character decode to


class GrowingText:
    """Decodes a row's tokens as they come; `text` is the answer so far, and only ever grows.

    The last characters are held back while they may be half a character, or the beginning of a stop string. Each call
    decodes the last tokens alone: those since the text last ended with a whole character, and some before, because
    tokenizers decode a first token otherwise than a later one.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stop: Sequence[str] = ()) -> None:
        self._decode, self._stop = decode, tuple(stop)
        self.text = ""
        self._decoded = ""  # all whole characters, a stop string included
        self._ids: list[int] = []  # the tokens that are decoded together with the next ones
        self._seen_ids, self._seen_characters = 0, 0  # of these tokens and their text: what is in `_decoded` already

    def add_ids(self, ids: Sequence[int]) -> None:
        """Add the next tokens."""
        self._ids += ids
        decoded = self._decode(self._ids)
        whole = decoded.rstrip(UNDECODED)
        if len(whole) <= self._seen_characters:
            return
        self._decoded += whole[self._seen_characters :]
        self._seen_characters = len(whole)
        if whole == decoded:  # else the next token begins within a character, and cannot be decoded without this one
            del self._ids[: self._seen_ids]
            self._seen_ids = len(self._ids)
            self._seen_characters = len(self._decode(self._ids))
        self._publish()

    def set_text(self, text: str) -> None:
        """Take the whole text so far, from a server that tells no ids."""
        self._decoded = text.rstrip(UNDECODED)
        self._publish()

    def _publish(self) -> None:
        answer = cut_at_stop(self._decoded, self._stop)
        if len(answer) == len(self._decoded):
            answer = answer[: len(answer) - held_back(answer, self._stop)]
        if len(answer) > len(self.text):
            self.text = answer


def held_back(text: str, stop: Sequence[str]) -> int:
    """How many characters at the end of a text may be the beginning of a stop string."""
    longest = 0
    for string in stop:
        for length in range(min(len(string) - 1, len(text)), longest, -1):
            if text.endswith(string[:length]):
                longest = length
                break
    return longest
