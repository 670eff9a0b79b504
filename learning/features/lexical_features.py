"""What a text looks like, cheaply: length, kinds of characters, words and numbers. No word is understood."""

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from learning.features.compressed_features import Matrix
from learning.predictors.length_predictor import Prompt

KINDS = {
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
for _number, _bytes in enumerate(KINDS.values(), 1):
    KIND_OF_BYTE[list(_bytes)] = _number
COUNTED = [i for i, name in enumerate(KINDS, 1) if name in ("line", "question", "stop", "comma", "block")]
MOST_BYTES = 16_384
NUMBER = re.compile(r"\d{1,4}")


def lexical(prompts: Sequence[Prompt]) -> Matrix:
    """One row a prompt: lengths in tokens and characters, shares and counts of characters, words and numbers."""
    return np.array([_row(p) for p in prompts], np.float32)


def _row(prompt: Prompt) -> npt.NDArray[np.float64]:
    text = prompt.input
    raw = np.frombuffer(text[:MOST_BYTES].encode("utf-8", "replace"), np.uint8)
    counts = np.bincount(KIND_OF_BYTE[raw], minlength=len(KINDS) + 1)
    words = text[:MOST_BYTES].split()
    numbers = [int(n) for n in NUMBER.findall(text[:MOST_BYTES])]
    rest = [
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
    return np.concatenate([rest, counts[1:] / (len(raw) + 1), counts[COUNTED]])
