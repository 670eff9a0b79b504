"""What linear models read of a text: its hashed words and, beside them, a sentence encoder's vector."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from learning.features.hashed_text import hash_texts
from learning.features.text_encoders import HASHING, Encoder, Vectors


@dataclass(frozen=True, slots=True)
class TextVectors:
    """One row a text; `encoded` has no columns with the hashing encoder, which knows the same words."""

    hashed: csr_array  # (texts, hashed_text.DIMENSION)
    encoded: Vectors  # (texts, the encoder's dimension), of unit length

    def __getitem__(self, rows: npt.NDArray[np.int64]) -> "TextVectors":
        return TextVectors(csr_array(self.hashed[rows]), self.encoded[rows])


def read_texts(texts: Sequence[str], encoder: Encoder, wanted: npt.NDArray[np.bool_]) -> TextVectors:
    """Vectors of these texts; only those that are `wanted` are given to the encoder, the others' vectors are 0."""
    if encoder.name == HASHING:
        return TextVectors(hash_texts(texts), np.zeros((len(texts), 0), np.float32))
    encoded = np.zeros((len(texts), encoder.dimension), np.float32)
    encoded[wanted] = encoder.encode([text for text, want in zip(texts, wanted, strict=True) if want])
    return TextVectors(hash_texts(texts), encoded)
