"""Finds short endings of an answer under a grammar: the tokens behind which the answer is complete. Imports no torch.

A walk takes one byte after the other: those that the grammar forces, and otherwise one that closes what is open. It
finds a short ending, mostly the shortest, in some 0.1 ms, because it asks the grammar about single bytes and never for
a mask of the vocabulary. A longer ending than the shortest is safe: an answer is then led to its end a little earlier.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from time import thread_time

from llguidance import LLMatcher, LLTokenizer

from request_body import AnswerForm

# The bytes in the order in which a walk tries them: the shortest values, then others; what closes is tried before them.
ORDER = b"0123456789aA@-.:,\"ntf{[ bcdeghijklmopqrsuvwxyzBCDEFGHIJKLMNOPQRSTUVWXYZ_/+#()<>*=?!$%&';^`|~}]\n\t\r\\"
EVERY = ORDER + bytes(byte for byte in range(256) if byte not in ORDER)
MOST_BYTES = 4096  # of an ending that is looked for; not tuned otherwise
MOST_CHOICES = 128  # bytes that the grammar leaves free at one place; a text that never ends has no more. Not tuned
CONTEXT_BYTES = 8  # choices behind the same bytes count as choices at the same place of the grammar; not tuned
MOST_BRANCHES = 8  # the bytes that are tried at one place of a thorough search; not tuned


def _kind(byte: int) -> int:
    """Returns one byte for all digits, one for all small letters and one for all capitals."""
    text = bytes([byte])
    return ord("0") if text.isdigit() else ord("a") if text.islower() else ord("A") if text.isupper() else byte


KIND = [_kind(byte) for byte in range(256)]


class Taken:
    """The bytes that a walk has chosen; others take turns with them, so that repetitions and recursions end."""

    def __init__(self) -> None:
        self.lately = Counter[int]()  # how often each byte and each kind of byte was chosen since bytes were forced
        self._depth = self._closed = 0  # the brackets that are open beyond those at the beginning; those that closed
        # behind the same bytes: the turn of a byte, how often it was chosen, and the brackets open and closed by then
        self._behind = dict[bytes, tuple[int, int, int, int]]()

    def add(self, following: bytes) -> None:
        """Counts the brackets of the walk's next bytes."""
        opened, closed = (sum(map(following.count, brackets)) for brackets in (b"{[", b"}]"))
        self._depth, self._closed = self._depth + opened - closed, self._closed + closed

    def chosen(self, allowed: Sequence[int], context: bytes) -> int:
        """Returns the byte that is chosen next.

        Behind the same bytes, the first one of those chosen least lately is chosen twice, the second one eight times,
        the third one 32 times. One that has led deeper to the same place has no further turn, and one whose brackets
        have closed since keeps its turn: a recursion takes a wrong way once, and the right one as often as it needs.
        """
        least = min(map(self._times, allowed))
        least_taken = [byte for byte in allowed if self._times(byte) == least]
        turn, times, depth, closed = self._behind.get(context, (0, 0, self._depth, self._closed))
        if self._depth > depth or times >= 2 * 4**turn:
            turn, times = turn + 1, 0
        if self._closed == closed or not times:
            times += 1
        self._behind[context] = turn, times, self._depth, self._closed
        byte = least_taken[turn % len(least_taken)]
        self.lately.update((byte, -KIND[byte]))
        return byte

    def _times(self, byte: int) -> tuple[int, int]:
        return self.lately[-KIND[byte]], self.lately[byte]


class AnswerEndings:
    """Finds endings in the tokens of one vocabulary; several threads may use it."""

    def __init__(self, vocabulary: LLTokenizer) -> None:
        self._vocabulary, self.eos_id = vocabulary, vocabulary.eos_token
        self._token_of: dict[int, int] = {}
        for token in range(vocabulary.vocab_size):
            text = vocabulary.decode_bytes([token])
            if len(text) == 1 and not vocabulary.is_special_token(token):
                self._token_of.setdefault(text[0], token)

    def leads(self, form: AnswerForm) -> list[list[int]]:
        """Returns the tokens that may have to come before an ending in answers of this form: the end of thinking."""
        final = "<|channel|>final<|message|>"
        marks = [final, f"<|end|><|start|>assistant{final}"] if form.channels else [form.closing]
        return [[], *(self._vocabulary.tokenize_str(mark) for mark in marks if mark)]

    def completes(self, matcher: LLMatcher, ending: Sequence[int]) -> bool:
        """Returns whether an answer is complete behind these tokens."""
        if not ending:
            return bool(matcher.is_accepting())
        return bool(matcher.validate_tokens([*ending, self.eos_id]) == len(ending) + 1)

    def rests(self, ending: Sequence[int], token: int) -> Iterable[list[int]]:
        """Yields what may remain of an ending behind a token: without its first token, or without the token's bytes."""
        yield [*ending[1:]]
        text, begun = self._bytes(ending), self._bytes([token])
        if text.startswith(begun):
            yield [*self._vocabulary.tokenize_bytes(text[len(begun) :])]

    def short(self, matcher: LLMatcher, until_s: float, leads: Sequence[Sequence[int]] = ((),)) -> list[int] | None:
        """Returns a short ending, or None if the walk finds none before this `thread_time`.

        Where a line break is possible, which JSON nowhere has here, the model may still be thinking.
        """
        thinks = self._allows(matcher, b"\n")
        found = (self._behind(matcher, lead, until_s) for lead in (leads[::-1] if thinks else leads))
        return next((ending for ending in found if ending is not None), None)

    def shortest(self, matcher: LLMatcher, until_s: float, leads: Sequence[Sequence[int]] = ((),)) -> list[int] | None:
        """Returns the shortest ending that it finds before this `thread_time`.

        At each place where the grammar leaves a choice, it compares the endings behind each next byte. The first tokens
        of a lead may have come already, as where an answer that was led to its end goes on elsewhere.
        """
        best = self.short(matcher, until_s, leads)
        for unsaid in [lead[begun:] for lead in leads for begun in range(1, len(lead))]:
            closed = self._behind(matcher, unsaid, until_s, ends_thinking=True)
            best = closed if best is None else min(best, closed or best, key=len)
        at, begun = matcher.deep_copy(), list[int]()
        while not at.is_accepting() and len(begun) < MOST_BYTES and thread_time() < until_s:
            tried = [[*self._ids(at.compute_ff_bytes())]]
            if not tried[0]:
                tried = [[self._token_of[byte]] for byte in self._branches(at)]
            endings = []
            for ids in tried:
                behind = at.deep_copy()
                if behind.try_consume_tokens(ids) == len(ids) and (rest := self._walk(behind, until_s)) is not None:
                    endings.append((len(self._tokens(at, self._bytes(ids) + rest)), len(rest), ids, rest))
            if not endings:
                return best
            _, _, ids, rest = min(endings)
            whole = self._tokens(matcher, self._bytes([*begun, *ids]) + rest)
            best = whole if best is None else min(best, whole, key=len)
            begun += ids
            at.consume_tokens(ids)
        return best

    def _behind(
        self, matcher: LLMatcher, lead: Sequence[int], until_s: float, *, ends_thinking: bool = False
    ) -> list[int] | None:
        """Returns a short ending that begins with these tokens, or None, also if they must end the thinking and do not.

        No value in JSON begins with a tilde, but a thought may go on with one.
        """
        behind = matcher.deep_copy()
        if behind.try_consume_tokens([*lead]) < len(lead) or (ends_thinking and self._allows(behind, b"~")):
            return None
        ending = self._walk(behind.deep_copy(), until_s)
        return None if ending is None else [*lead, *self._tokens(behind, ending)]

    def _walk(self, matcher: LLMatcher, until_s: float) -> bytes | None:
        """Returns the bytes of a short ending, which the matcher consumes."""
        ending, choices, taken = b"", 0, Taken()
        while not matcher.is_accepting():
            following = bytes(matcher.compute_ff_bytes())
            if following:
                choices = 0
                taken.lately.clear()
            else:
                following = self._chosen(matcher, taken, ending[-CONTEXT_BYTES:])
                choices += 1
            ids = self._ids(following)
            if not ids or matcher.try_consume_tokens(ids) < len(ids) or thread_time() > until_s:
                return None
            ending += following
            taken.add(following)
            if choices > MOST_CHOICES or len(ending) > MOST_BYTES:
                return None
        return ending

    def _chosen(self, matcher: LLMatcher, taken: "Taken", context: bytes) -> bytes:
        """Returns the next byte of a short ending, b"" if there is none."""
        inside_text = self._inside_text(matcher)
        closers = b"}]" if not inside_text else b'"' if not context.endswith(b'""') else b""
        closing = self._allowed(matcher, closers)
        if closing:
            return bytes(closing[:1])
        allowed = self._allowed(matcher, ORDER) or self._allowed(matcher, EVERY)
        return bytes([taken.chosen(allowed, context)]) if allowed else b""

    def _inside_text(self, matcher: LLMatcher) -> bool:
        """Returns whether the next bytes are of a string: between values, JSON allows only one of these at a time."""
        return self._allows(matcher, b"a") or (self._allows(matcher, b"}") and self._allows(matcher, b"]"))

    def _branches(self, matcher: LLMatcher) -> list[int]:
        if self._allows(matcher, b'"') and self._inside_text(matcher):
            return [*b'"']
        allowed = self._allowed(matcher, [*dict.fromkeys(b'}],"' + EVERY)])
        if len(allowed) > MOST_BRANCHES:  # one of each kind
            allowed = [*{KIND[byte]: byte for byte in reversed(allowed)}.values()][::-1]
        return allowed[:MOST_BRANCHES]

    def _allowed(self, matcher: LLMatcher, order: Iterable[int]) -> list[int]:
        return [byte for byte in order if self._allows(matcher, bytes([byte]))]

    def _allows(self, matcher: LLMatcher, byte: bytes) -> bool:
        token = self._token_of.get(byte[0])
        return token is not None and bool(matcher.validate_tokens([token]))

    def _ids(self, text: bytes) -> list[int]:
        """Returns the token of each byte, none if a byte has no token."""
        return [self._token_of[byte] for byte in text] if self._token_of.keys() >= {*text} else []

    def _bytes(self, ids: Sequence[int]) -> bytes:
        return bytes(self._vocabulary.decode_bytes([*ids]))

    def _tokens(self, matcher: LLMatcher, ending: bytes) -> list[int]:
        """Returns the ending in few tokens, or in single bytes if the matcher does not take these."""
        ids = self._vocabulary.tokenize_bytes(ending)
        return ids if self.completes(matcher, ids) else self._ids(ending)
