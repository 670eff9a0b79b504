"""Holds a row's answer to a JSON format: which tokens may come next, by llguidance."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer
from torch import Tensor

from inference.json_grammar import LIMITS, grammar_of
from inference.sequences import JsonFormat


class FormatMasks:
    """A vocabulary's tokens by their bytes; makes one matcher a row."""

    def __init__(self, vocabulary: LLTokenizer) -> None:
        self._vocabulary = vocabulary

    def matcher(self, format: JsonFormat, generated_ids: Sequence[int]) -> LLMatcher:
        """Of an answer that has these tokens already; it may be in error, which `LLMatcher.is_error` says."""
        matcher = LLMatcher(self._vocabulary, grammar_of(format), log_level=0, limits=LIMITS)
        matcher.consume_tokens(list(generated_ids))
        return matcher


def format_masks_of(tokenizer: Any, vocabulary_size: int, eos_ids: frozenset[int]) -> FormatMasks | None:
    """None if the tokenizer's tokens are unknown to llguidance, or if no token ends an answer."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not eos_ids:
        return None
    size = max(vocabulary_size, backend.get_vocab_size(with_added_tokens=True))
    try:
        return FormatMasks(LLTokenizer(backend.to_str(), n_vocab=size, eos_token=sorted(eos_ids)))
    except ValueError:
        return None


def allowed_tokens(matcher: LLMatcher, vocabulary_size: int) -> Tensor:
    """Which tokens may come next, [vocabulary] of bool on the CPU."""
    bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
    return torch.from_numpy(np.unpackbits(bits, bitorder="little")[:vocabulary_size].view(np.bool_))
