"""Holds rows to their formats: tells which tokens may come next, within a budget of CPU time for each row.

A row's answer is also led to a valid end within its limit. Once the row's limit is near, the format knows tokens behind
which the answer is complete, and a token that the model chooses counts only if such an ending fits behind it as well.
Otherwise the row gets the next token of the ending that it knows.
"""

from collections import deque
from collections.abc import Sequence
from itertools import chain
from time import thread_time
from typing import Any

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer
from torch import Tensor

from inference.answer_endings import AnswerEndings
from inference.engine_requests import JsonFormat
from inference.json_grammar import FormatChecks, compiled

# CPU time that a row's format may take at once, and for each token. Ordinary formats take 0.06 ms a token, and 2 ms for
# the first. A row that takes more is refused, so that no format slows down others for long. Not tuned otherwise.
ROW_BURST_S = 0.3
ROW_TOKEN_S = 0.002
# CPU time of a search for an ending, and of all of a row's searches: at once and for each token. Most searches take 0.1
# to 0.5 ms, those in patterns 4 ms, and most tokens need none. Not tuned otherwise.
SEARCH_S = 0.02
SEARCH_BURST_S, SEARCH_TOKEN_S = 0.2, 0.001
# A row is looked at after each token once its limit leaves it fewer spare tokens, beyond its ending, than a quarter of
# its schema's characters, and before that after a 16th of the spare tokens above them. An object's keys stand in its
# schema, with types around them, so that no token asks for much more by opening one. Not tuned otherwise.
LEAST_JUMP, MOST_JUMP, CHARACTERS_PER_TOKEN = 64, 256, 4
LOOK_EVERY = 16
# With this many spare tokens, a token behind which no ending is found in time is not replaced: later searches may find
# one. Not tuned.
FAR_TOKENS = 256
JSON_OBJECT = JsonFormat()
MOST_ENDINGS = 256  # the endings of this many formats' empty answers are remembered; not tuned
MOST_PREPARED = 64  # this many compiled formats wait for their rows; older ones are compiled again. Not tuned


class RowFormat:
    """One row's matcher; `error` is why the row cannot be held to its format any longer, "" while it can."""

    def __init__(
        self,
        matcher: LLMatcher,
        endings: AnswerEndings,
        format: JsonFormat = JSON_OBJECT,
        generated_ids: Sequence[int] = (),
        ending: list[int] | None = None,
    ) -> None:
        """`generated_ids` are the answer's first tokens, generated before; `ending` is a known one without any."""
        self._matcher, self._spent_s, self._tokens, self.error = matcher, 0.0, 0, ""
        self._endings, self._leads, self._searched_s = endings, endings.leads(format.answer_form), 0.0
        self._ending = None if generated_ids else ending  # the ending of the answer that was found last
        self._fits = self._ending is not None  # whether it is known to be one behind the present tokens
        characters = len(format.schema or format.pattern or format.grammar or "")
        self._jump = min(max(LEAST_JUMP, characters // CHARACTERS_PER_TOKEN), MOST_JUMP)
        self._look_at = 0  # the number of tokens of this row from which on its ending is looked for again
        self._ahead = False  # whether the matcher has consumed a token that the row gets only now
        self.led = False  # whether the row got a token that the model had not chosen
        matcher.consume_tokens(list(generated_ids))
        self._check()

    @property
    def complete(self) -> bool:
        """Whether the answer so far is one that the format allows."""
        return not self.error and bool(self._matcher.is_accepting())

    def allowed_tokens(self, vocabulary_size: int) -> Tensor:
        """Returns a mask of the tokens that may come next, [vocabulary] of bool on the CPU; sets `error`.

        A matcher that fails allows only the end of sequence, so the caller must check `error` before it ends the row.
        """
        began = thread_time()
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        self._spend(thread_time() - began)
        return torch.from_numpy(np.unpackbits(bits, bitorder="little")[:vocabulary_size].view(np.bool_))

    def allows(self, token: int) -> bool:
        """Returns whether the token may come next."""
        return not self.error and bool(self._matcher.validate_tokens([token]))

    def fitting(self, token: int, left: int) -> int:
        """Returns the next token of a row that gets at most `left` more: `token`, unless no ending fits behind it."""
        if self.error or self._tokens < self._look_at:
            return token
        self._ahead = True
        if not self._advance(token):
            return token
        found = self._found_behind(token, left - 1)
        spare = left if found is None else left - len(found)
        self._look_at = self._tokens + max(1, (spare - self._jump) // LOOK_EVERY)
        if found is not None:
            self._ending, self._fits = found, True
            return token
        self._matcher.rollback(1)
        self._ahead = False
        ending = self._present_ending(left)
        if ending is None or not 0 <= left - len(ending) <= FAR_TOKENS:
            return token
        self.led, self._look_at = True, self._tokens + 1
        return self._take_first(ending)

    def consume(self, token: int) -> None:
        """Adds the next token of the answer; sets `error`."""
        self._tokens += 1
        if self._ahead:
            self._ahead = False
            return
        self._fits = False
        self._advance(token)

    def _advance(self, token: int) -> bool:
        """Lets the matcher consume a token; returns whether it could, and otherwise sets `error`."""
        began = thread_time()
        self._matcher.consume_token(token)
        self._spend(thread_time() - began)
        return not self.error

    def _present_ending(self, left: int) -> list[int] | None:
        """Returns an ending of the answer so far, the shortest that it finds if others need more than `left` tokens."""
        if not self._fits and (self._ending is None or not self._endings.completes(self._matcher, self._ending)):
            self._ending = self._search(left, thorough=True)
        self._fits = self._ending is not None
        return self._ending

    def _found_behind(self, token: int, most: int) -> list[int] | None:
        """Returns an ending of at most `most` tokens behind a token that the matcher has just consumed, or None.

        Inside a text, the ending from before fits behind most tokens; elsewhere, often the rest of it.
        """
        known = self._ending
        for ending in () if known is None else chain((known,), self._endings.rests(known, token)):
            if len(ending) <= most and self._endings.completes(self._matcher, ending):
                return ending
        found = self._search(most)
        return found if found is not None and len(found) <= most else None

    def _take_first(self, ending: list[int]) -> int:
        """Lets the matcher consume the first token of an ending; behind the last one comes the end of sequence."""
        if not ending:
            return self._endings.eos_id
        self._advance(ending[0])
        self._ending, self._fits, self._ahead = ending[1:], True, True
        return ending[0]

    def _search(self, most: int, *, thorough: bool = False) -> list[int] | None:
        """Returns an ending or None; a `thorough` search looks for a shorter one if it has above `most` tokens."""
        began = thread_time()
        if self._searched_s > SEARCH_BURST_S + SEARCH_TOKEN_S * self._tokens:
            return None
        found = self._endings.short(self._matcher, began + SEARCH_S, self._leads)
        if thorough and (found is None or len(found) > most):
            # a limit just above the shortest answer: only a search of the whole answer finds it, and nothing later does
            within_s = SEARCH_S if self._tokens else SEARCH_BURST_S
            found = self._endings.shortest(self._matcher, began + within_s, self._leads)
        self._searched_s += thread_time() - began
        return found

    def _spend(self, seconds: float) -> None:
        self._spent_s += seconds
        self._check()
        if not self.error and self._spent_s > ROW_BURST_S + ROW_TOKEN_S * self._tokens:
            self.error = f"it took {self._spent_s:.2f} s of CPU time for {self._tokens} tokens"

    def _check(self) -> None:
        if self._matcher.is_error():
            self.error = self._matcher.get_error().partition("\n")[0] or "it failed"


class FormatMasks:
    """Makes the matcher of each row's format, from the bytes of the vocabulary's tokens."""

    def __init__(self, vocabulary: LLTokenizer, checks: FormatChecks) -> None:
        """`checks` knows the same vocabulary."""
        self._vocabulary, self._checks, self._endings = vocabulary, checks, AnswerEndings(vocabulary)
        self._prepared: deque[tuple[JsonFormat, LLMatcher]] = deque(maxlen=MOST_PREPARED)
        self._first_endings: dict[JsonFormat, list[int] | None] = {}

    def prepare(self, format: JsonFormat, caller: str = "") -> str | None:
        """Compiles a format for one row that will come, in any thread; returns why that is impossible, or None."""
        problem = self._checks.problem_of(format, caller)
        if problem is None:
            matcher = compiled(format, self._vocabulary)
            self._remember_ending(format, matcher)  # before the engine's thread can take the matcher
            self._prepared.append((format, matcher))
        return problem

    def matcher(self, format: JsonFormat, generated_ids: Sequence[int]) -> RowFormat | str:
        """Returns the matcher of an answer that begins with `generated_ids`, or why there can be none."""
        found = next((one for one in tuple(self._prepared) if one[0] == format), None)
        if found is not None:
            self._prepared.remove(found)
            return self._row(format, found[1], generated_ids)
        problem = self._checks.problem_of(format)
        return problem or self._row(format, compiled(format, self._vocabulary), generated_ids)

    def _row(self, format: JsonFormat, matcher: LLMatcher, generated_ids: Sequence[int]) -> RowFormat:
        ending = self._first_endings.get(format)
        return RowFormat(matcher, self._endings, format, generated_ids, ending)

    def _remember_ending(self, format: JsonFormat, matcher: LLMatcher) -> None:
        """Looks for the ending of an empty answer, which takes long because the matcher is new."""
        if format not in self._first_endings:
            leads, until_s = self._endings.leads(format.answer_form), thread_time() + SEARCH_S
            while len(self._first_endings) >= MOST_ENDINGS:
                self._first_endings.pop(next(iter(self._first_endings)), None)
            self._first_endings[format] = self._endings.short(matcher, until_s, leads)


def load_format_masks(tokenizer: Any, vocabulary_size: int, eos_ids: frozenset[int]) -> FormatMasks | None:
    """Returns the masks for a tokenizer, or None if llguidance cannot read it or the model has no EOS."""
    if not isinstance(tokenizer, Tokenizer) or not eos_ids:
        return None
    size, eos_id = max(vocabulary_size, tokenizer.get_vocab_size(with_added_tokens=True)), min(eos_ids)
    try:
        vocabulary = LLTokenizer(tokenizer.to_str(), n_vocab=size, eos_token=eos_id)
    except ValueError:
        return None
    return FormatMasks(vocabulary, FormatChecks(tokenizer.to_str(), size, eos_id))
