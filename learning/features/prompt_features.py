"""Features of a prompt for forests: the paper's (Magnus III-B), and cheap ones of a text in any language.

The paper's are the user input length, 4 application-level values and 16 user-level values. The 16 values compress a
sentence encoder's vector. The hashing encoder's vector is not compressed: sums of 48 unrelated hash buckets raised the
RMSE on chat from 167 to 182 and lowered Kendall's tau from 0.29 to 0.18 (five splits by text).
"""

import re
import string
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from learning.features.length_predictor import Prompt, input_lengths
from learning.features.text_encoders import HASHING, Encoder, Vectors
from scheduling.costs import Floats

FeatureMatrix = npt.NDArray[np.float32]  # (prompts, features)

APPLICATION_VALUES, USER_VALUES = 4, 16  # the paper's (III-B)
CHARACTER_KINDS = {
    "upper": string.ascii_uppercase.encode(),
    "digit": string.digits.encode(),
    "space": b" \t",
    "line": b"\n",
    "question": b"?",
    "stop": b".!",
    "comma": b",;:",
    "quote": b"\"'`",
    "bracket": b"()[]<>",
    "block": b"{}=",
    "other": bytes(set(string.punctuation.encode()) - set(b"?.!,;:\"'`()[]<>{}=")),
    "foreign": bytes(range(128, 256)),
}
KIND_OF_BYTE = np.zeros(256, np.int64)  # 0 stands for lower-case letters and control characters
for _number, _bytes in enumerate(CHARACTER_KINDS.values(), 1):
    KIND_OF_BYTE[list(_bytes)] = _number
# Kinds of characters whose number, and not only whose share of the text, may tell the length of the answer.
COUNTED = [i for i, name in enumerate(CHARACTER_KINDS, 1) if name in ("line", "question", "stop", "comma", "block")]
MOST_CHARACTERS_READ = 16_384  # bounds a prediction's time; answers seldom depend on later characters. Not tuned
SHORT_NUMBER = re.compile(r"\d{1,4}")  # an amount; longer digit strings are read in pieces


def compress(vectors: Vectors, groups: int) -> FeatureMatrix:
    """Return the sum of each of `groups` equal groups of values, divided by the square root of the group's size."""
    bounds = np.linspace(0, vectors.shape[1], groups + 1).astype(int)
    sums = np.add.reduceat(vectors, bounds[:-1], axis=1)
    return np.asarray(sums / np.sqrt(np.diff(bounds)), np.float32)


def user_input_length(prompts: Sequence[Prompt]) -> FeatureMatrix:
    """Return the user input length (UIL) as a column."""
    return input_lengths(prompts).astype(np.float32)[:, None]


def application_features(prompts: Sequence[Prompt], encoder: Encoder) -> FeatureMatrix:
    """Return the compressed instruction of each prompt; each distinct instruction is encoded once."""
    distinct = sorted({p.instruction for p in prompts})
    rows = {text: i for i, text in enumerate(distinct)}
    values = compress(encoder.encode(distinct), APPLICATION_VALUES)
    return values[[rows[p.instruction] for p in prompts]]


def user_features(prompts: Sequence[Prompt], encoder: Encoder) -> FeatureMatrix:
    """Return the vector of each prompt's user input, compressed unless it is hashed."""
    vectors = encoder.encode([p.input for p in prompts])
    return vectors if encoder.name == HASHING else compress(vectors, USER_VALUES)


def lexical_features(prompts: Sequence[Prompt]) -> FeatureMatrix:
    """Return a row for each prompt: lengths in tokens and characters, shares and counts of characters and words."""
    return np.array([_lexical_row(p) for p in prompts], np.float32)


def _lexical_row(prompt: Prompt) -> Floats:
    text, head = prompt.input, prompt.input[:MOST_CHARACTERS_READ]
    raw = np.frombuffer(head.encode("utf-8", "replace"), np.uint8)
    counts = np.bincount(KIND_OF_BYTE[raw], minlength=len(CHARACTER_KINDS) + 1)
    words = head.split()
    numbers = [int(n) for n in SHORT_NUMBER.findall(head)]
    word_features = [
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
    return np.concatenate([word_features, counts[1:] / (len(raw) + 1), counts[COUNTED]])
