"""Holds rows to their formats: tells which tokens may come next, within a budget of CPU time for each row."""

from collections import deque
from collections.abc import Sequence
from time import thread_time
from typing import Any

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer
from torch import Tensor

from inference.engine_requests import JsonFormat
from inference.json_grammar import FormatChecks, compiled

# CPU time that a row's format may take at once, and for each token. Ordinary formats take 0.06 ms a token, and 2 ms for
# the first. A row that takes more is refused, so that no format slows down others for long. Not tuned otherwise.
ROW_BURST_S = 0.3
ROW_TOKEN_S = 0.002
MOST_PREPARED = 64  # this many compiled formats wait for their rows; older ones are compiled again. Not tuned


class RowFormat:
    """One row's matcher; `error` is why the row cannot be held to its format any longer, "" while it can."""

    __slots__ = ("_matcher", "_spent_s", "_tokens", "error")

    def __init__(self, matcher: LLMatcher, generated_ids: Sequence[int] = ()) -> None:
        """`generated_ids` are the answer's first tokens, which were generated before."""
        self._matcher, self._spent_s, self._tokens, self.error = matcher, 0.0, 0, ""
        matcher.consume_tokens(list(generated_ids))
        self._check()

    def allowed_tokens(self, vocabulary_size: int) -> Tensor:
        """Returns a mask of the tokens that may come next, [vocabulary] of bool on the CPU; sets `error`.

        A matcher that fails allows only the end of sequence, so the caller must check `error` before it ends the row.
        """
        began = thread_time()
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        self._spend(thread_time() - began)
        return torch.from_numpy(np.unpackbits(bits, bitorder="little")[:vocabulary_size].view(np.bool_))

    def consume(self, token: int) -> None:
        """Adds the next token of the answer; sets `error`."""
        began = thread_time()
        self._matcher.consume_token(token)
        self._tokens += 1
        self._spend(thread_time() - began)

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
        self._vocabulary, self._checks = vocabulary, checks
        self._prepared: deque[tuple[JsonFormat, LLMatcher]] = deque(maxlen=MOST_PREPARED)

    def prepare(self, format: JsonFormat, caller: str = "") -> str | None:
        """Compiles a format for one row that will come, in any thread; returns why that is impossible, or None."""
        problem = self._checks.problem_of(format, caller)
        if problem is None:
            self._prepared.append((format, compiled(format, self._vocabulary)))
        return problem

    def matcher(self, format: JsonFormat, generated_ids: Sequence[int]) -> RowFormat | str:
        """Returns the matcher of an answer that begins with `generated_ids`, or why there can be none."""
        found = next((one for one in tuple(self._prepared) if one[0] == format), None)
        if found is not None:
            self._prepared.remove(found)
            return RowFormat(found[1], generated_ids)
        problem = self._checks.problem_of(format)
        return problem or RowFormat(compiled(format, self._vocabulary), generated_ids)


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
