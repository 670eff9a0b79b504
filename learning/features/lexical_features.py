"""How a text looks: its length, kinds of characters, words and numbers. Cheap, and the same for every language."""

import re
from collections.abc import Sequence

import numpy as np

from learning.features.compressed_features import FeatureMatrix
from learning.predictors.length_predictor import Prompt
from scheduling.costs import Floats

CHARACTER_KINDS = {
    "upper": b"ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "digit": b"0123456789",
    "space": b" \t",
    "line": b"\n",
    "question": b"?",
    "stop": b".!",
    "comma": b",;:",
    "quote": b"\"'`",
    "bracket": b"()[]<>",
    "block": b"{}=",
    "other": bytes(
        set(range(33, 127))
        - set(b"?.!,;:\"'`()[]<>{}=")
        - set(range(48, 58))
        - set(range(65, 91))
        - set(range(97, 123))
    ),
    "foreign": bytes(range(128, 256)),
}
KIND_OF_BYTE = np.zeros(256, np.int64)  # 0: lower-case letters and control characters
for _number, _bytes in enumerate(CHARACTER_KINDS.values(), 1):
    KIND_OF_BYTE[list(_bytes)] = _number
# Kinds whose number, not only whose share of the text, may say how much is asked for.
COUNTED = [i for i, name in enumerate(CHARACTER_KINDS, 1) if name in ("line", "question", "stop", "comma", "block")]
MOST_CHARACTERS_READ = 16_384  # bounds the time of a prediction; answers seldom depend on what comes later, not tuned
SHORT_NUMBER = re.compile(r"\d{1,4}")  # an amount; longer digit strings are read in pieces


def lexical_features(prompts: Sequence[Prompt]) -> FeatureMatrix:
    """One row a prompt: lengths in tokens and characters, shares and counts of characters, words and numbers."""
    return np.array([_row(p) for p in prompts], np.float32)


def _row(prompt: Prompt) -> Floats:
    text = prompt.input
    raw = np.frombuffer(text[:MOST_CHARACTERS_READ].encode("utf-8", "replace"), np.uint8)
    counts = np.bincount(KIND_OF_BYTE[raw], minlength=len(CHARACTER_KINDS) + 1)
    words = text[:MOST_CHARACTERS_READ].split()
    numbers = [int(n) for n in SHORT_NUMBER.findall(text[:MOST_CHARACTERS_READ])]
    of_words = [
        np.log1p(prompt.input_tokens),
        np.log1p(prompt.prompt_tokens - prompt.input_tokens),
        len(text) / max(1, prompt.input_tokens),
        len(text) / (len(words) + 1),
        len(set(words)) / (len(words) + 1),
        sum(len(w) > 7 for w in words) / (len(words) + 1),
        text.rstrip().endswith("?"),
        np.log1p(max(numbers, default=0)),
        len(numbers),
    ]
    return np.concatenate([of_words, counts[1:] / (len(raw) + 1), counts[COUNTED]])
