"""An answer's stop strings, the bytes of a token, and the text that is final while tokens come. Imports no torch."""

import re
from collections.abc import Callable, Sequence
from typing import Protocol


class Detokenizer(Protocol):
    """The part of a tokenizer that turns ids back into text."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = ...) -> str:
        """Returns the text of these tokens."""
        ...


def ends_in_stop_string(detokenizer: Detokenizer, generated_ids: Sequence[int], stop: Sequence[str]) -> bool:
    """Returns whether the last token completed a stop string.

    Each token decodes to at least one byte, so a stop string of n bytes lies within the last n tokens. One more token
    is decoded because some tokenizers drop a leading blank.
    """
    tail_tokens = max(len(text.encode()) for text in stop) + 1
    tail = detokenizer.decode(list(generated_ids[-tail_tokens:]), skip_special_tokens=True)
    return any(text in tail for text in stop)


def cut_at_stop(text: str, stop: Sequence[str]) -> str:
    """Returns the answer up to its first stop string, as clients expect it."""
    starts = [start for start in map(text.find, stop) if start >= 0]
    return text[: min(starts)] if starts else text


BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # the form in which vocabularies of SentencePiece write a single byte


def _byte_level_alphabet() -> dict[str, int]:
    """Returns the byte for each of GPT-2's characters: printable bytes are themselves, the others begin at U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


BYTE_OF = _byte_level_alphabet()


def bytes_of_token(piece: str, byte_level: bool) -> bytes:
    """Returns the bytes of a vocabulary's entry; with `byte_level`, each of its characters is a byte, as in GPT-2."""
    if byte_level:
        # an added token is plain text, and may have characters outside the byte alphabet
        return bytes(BYTE_OF[one] for one in piece) if all(one in BYTE_OF for one in piece) else piece.encode()
    found = BYTE.fullmatch(piece)
    return bytes([int(found[1], 16)]) if found else piece.replace("\u2581", " ").encode()


UNDECODED = "\N{REPLACEMENT CHARACTER}"  # result of decoding an unfinished character's bytes


class GrowingText:
    """Decodes a row's tokens as they come; `text` is the answer so far, and only ever grows.

    Bytes of an unfinished character, and characters that may begin a stop string, are held back. Each call decodes only
    the tokens since the text last ended with a whole character, and some tokens before them, because tokenizers decode
    the first token of a text differently from later ones.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stop: Sequence[str] = ()) -> None:
        self._decode, self._stop = decode, tuple(stop)
        self.text = ""
        self._decoded = ""  # all whole characters, a stop string included
        self._ids: list[int] = []  # the tokens that are decoded together with the next ones
        # how many of `_ids`, and how many characters of their text, are in `_decoded` already
        self._seen_ids, self._seen_characters = 0, 0

    def add_ids(self, ids: Sequence[int]) -> None:
        """Adds the next tokens."""
        self._ids += ids
        decoded = self._decode(self._ids)
        whole = decoded.rstrip(UNDECODED)
        if len(whole) <= self._seen_characters:
            return
        self._decoded += whole[self._seen_characters :]
        self._seen_characters = len(whole)
        if whole == decoded:  # otherwise the last token ends within a character, and is decoded again with the next one
            del self._ids[: self._seen_ids]
            self._seen_ids = len(self._ids)
            self._seen_characters = len(self._decode(self._ids))
        self._publish()

    def set_text(self, text: str) -> None:
        """Takes the whole text so far, from a server that gives no ids."""
        self._decoded = text.rstrip(UNDECODED)
        self._publish()

    def _publish(self) -> None:
        answer = cut_at_stop(self._decoded, self._stop)
        if len(answer) == len(self._decoded):
            answer = answer[: len(answer) - held_back(answer, self._stop)]
        if len(answer) > len(self.text):
            self.text = answer


def held_back(text: str, stop: Sequence[str]) -> int:
    """Returns how many characters at the end of a text may be the beginning of a stop string."""
    beginnings = (string[:length] for string in stop for length in range(1, len(string)))
    return max((len(beginning) for beginning in beginnings if text.endswith(beginning)), default=0)
