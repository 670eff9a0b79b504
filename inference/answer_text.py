"""Finds stop strings in an answer, a token's bytes, and the final part of a text that still grows. Imports no torch."""

import re
from collections.abc import Callable, Sequence
from typing import Protocol

# Not behind a number, which may go on or begin an item of a list, nor behind a single letter, as in `e.g.`.
SENTENCE_END = re.compile(r"""([^\W\d_]{2}["'”’)\]*_]*[.!?…]+|[。！？])["'”’)\]*_]*\s*$""")
# Behind these a sentence goes on nearly always.
ABBREVIATION = re.compile(r"""\b(Mr|Mrs|Ms|Dr|Prof|St|vs|cf|etc|approx|Fig)\.["'”’)\]*_]*\s*$""", re.IGNORECASE)
SENTENCE_TOKENS = 12  # the end of a word, its mark and what closes it; tokens may be single bytes


class Detokenizer(Protocol):
    """The part of a tokenizer that turns ids back into text."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = ...) -> str:
        """Returns the text of these tokens."""


def ends_in_stop_string(detokenizer: Detokenizer, generated_ids: Sequence[int], stop: Sequence[str]) -> bool:
    """Returns whether the last token completed a stop string.

    Each token decodes to at least one byte, so a stop string of n bytes lies within the last n tokens. One more token
    is decoded because some tokenizers drop a leading blank.
    """
    tail_tokens = max(len(text.encode()) for text in stop) + 1
    tail = detokenizer.decode(list(generated_ids[-tail_tokens:]), skip_special_tokens=True)
    return any(text in tail for text in stop)


def ends_sentence(detokenizer: Detokenizer, generated_ids: Sequence[int]) -> bool:
    """Returns whether the last token completed a sentence: a mark behind a word of two letters, quotes, brackets.

    A word that is an abbreviation does not count.
    """
    tail = detokenizer.decode(list(generated_ids[-SENTENCE_TOKENS:]), skip_special_tokens=True)
    return SENTENCE_END.search(tail) is not None and ABBREVIATION.search(tail) is None


def cut_at_stop(text: str, stop: Sequence[str]) -> str:
    """Returns the answer up to its first stop string, as clients expect it."""
    return text.partition(found)[0] if (found := first_stop(text, stop)) else text


def first_stop(text: str, stop: Sequence[str]) -> str | None:
    """Returns the stop string that begins first in a text, of several at one place the shortest; None without one."""
    begun = [(start, len(one), one) for one in stop if (start := text.find(one)) >= 0]
    return min(begun)[2] if begun else None


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


UNDECODED = "\N{REPLACEMENT CHARACTER}"  # a tokenizer decodes the bytes of an unfinished character to this
UNSTORABLE = re.compile("[\0\ud800-\udfff]")  # Postgres stores neither NUL nor half of a pair of surrogates


def storable(text: str) -> str:
    """Returns a text of a model or a server as valid Unicode without NUL, which every reader can encode."""
    return UNSTORABLE.sub(UNDECODED, text)


class GrowingText:
    """Decodes a row's tokens as they come; `text` is the answer so far, and only ever grows.

    Bytes of an unfinished character, and characters that may begin a stop string, are held back. Each call decodes only
    the tokens since the text last ended with a whole character, and some tokens before them, because tokenizers decode
    the first token of a text differently from later ones. Each character is read once.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stop: Sequence[str] = ()) -> None:
        self._decode, self._stop = decode, tuple(stop)
        self.length = 0  # characters of the answer so far
        self._texts: list[str] = []  # the answer so far
        self._held = ""  # whole characters behind it, which may begin a stop string
        self._stopped = False  # a stop string has ended the answer
        self._ids: list[int] = []  # the tokens that are decoded together with the next ones
        # how many of `_ids`, and how many characters of their text, were read already
        self._seen_ids, self._seen_characters = 0, 0
        self._decode_at = 0  # `_ids` are decoded again once there are this many of them

    @property
    def text(self) -> str:
        """Returns the answer so far."""
        return "".join(self._texts)

    def add_ids(self, ids: Sequence[int]) -> str:
        """Adds the next tokens; returns what the answer gained."""
        self._ids += ids
        if len(self._ids) < self._decode_at:
            return ""
        decoded = self._decode(self._ids)
        whole = decoded.rstrip(UNDECODED)
        # a character has few bytes: a long run that completes none, as a logit bias can cause, is decoded more rarely
        self._decode_at = len(self._ids) + (len(decoded) - len(whole)) // 16
        if len(whole) <= self._seen_characters:
            return ""
        new = whole[self._seen_characters :]
        self._seen_characters = len(whole)
        if whole == decoded:  # otherwise the last token ends within a character, and is decoded again with the next one
            del self._ids[: self._seen_ids]
            self._decode_at = 0
            self._seen_ids = len(self._ids)
            self._seen_characters = len(self._decode(self._ids))
        return self._grow(new)

    def set_text(self, text: str) -> str:
        """Takes the whole text so far, from a server that gives no ids; returns what the answer gained."""
        return self._grow(text.rstrip(UNDECODED)[self.length + len(self._held) :])

    def _grow(self, new: str) -> str:
        if self._stopped:
            return ""
        held = self._held + new
        answer = cut_at_stop(held, self._stop)
        self._stopped = len(answer) < len(held)
        if not self._stopped:
            answer = answer[: len(answer) - held_back(answer, self._stop)]
        self._texts.append(answer)
        self.length, self._held = self.length + len(answer), held[len(answer) :]
        return answer


def held_back(text: str, stop: Sequence[str]) -> int:
    """Returns how many characters at the end of a text may be the beginning of a stop string."""
    beginnings = (string[:length] for string in stop for length in range(1, len(string)))
    return max((len(beginning) for beginning in beginnings if text.endswith(beginning)), default=0)
