"""The stored form of vectors and scores, which is also OpenAI's: base64 of little-endian float32."""

from base64 import b64decode, b64encode

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]
LITTLE_ENDIAN = np.dtype("<f4")


def packed(values: Vectors) -> str:
    """Returns the values of all rows, one row after the other, as text."""
    return b64encode(values.astype(LITTLE_ENDIAN).tobytes()).decode()


def unpacked(text: str, rows: int) -> Vectors:
    """Returns the array (rows, values) that `packed` turned into this text; raises ValueError for any other text."""
    return np.frombuffer(b64decode(text, validate=True), LITTLE_ENDIAN).reshape(rows, -1)


def cosines(queries: Vectors, documents: Vectors) -> Vectors:
    """Returns the cosine of each document and its query, as an array (documents,); a single query belongs to all."""
    products = (queries * documents).sum(axis=1)
    lengths = np.linalg.norm(queries, axis=1) * np.linalg.norm(documents, axis=1)
    return np.asarray(products / np.maximum(lengths, 1e-12), np.float32)
