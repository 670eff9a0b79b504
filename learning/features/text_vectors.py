"""What linear models read of a text: its hashed words and, beside them, a sentence encoder's vector."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from learning.features.group_key import group_key
from learning.features.hashed_text import hash_texts
from learning.features.text_encoders import HASHING, Encoder, Vectors
from learning.predictors.length_predictor import Prompt


@dataclass(frozen=True, slots=True)
class TextVectors:
    """One row a text; `encoded` has no columns with the hashing encoder, which knows the same words."""

    hashed: csr_array  # (texts, hashed_text.DIMENSION)
    encoded: Vectors  # (texts, the encoder's dimension), of unit length

    def __getitem__(self, rows: npt.NDArray[np.int64]) -> "TextVectors":
        return TextVectors(csr_array(self.hashed[rows]), self.encoded[rows])


def read_texts(prompts: Sequence[Prompt], encoder: Encoder, wanted: npt.NDArray[np.bool_]) -> TextVectors:
    """Vectors of these prompts' inputs; only those that are `wanted` are encoded, the others' vectors are 0.

    The application counts as a word: where it has too few answers for models of its own, its answers still speak.
    """
    texts = [prompt.input for prompt in prompts]
    hashed = hash_texts(texts, [group_key(prompt.application) for prompt in prompts])
    if encoder.name == HASHING:
        return TextVectors(hashed, np.zeros((len(texts), 0), np.float32))
    encoded = np.zeros((len(texts), encoder.dimension), np.float32)
    encoded[wanted] = encoder.encode([text for text, want in zip(texts, wanted, strict=True) if want])
    return TextVectors(hashed, encoded)
