"""Sparse vectors of texts for linear models: which words, word pairs and short byte sequences occur in them."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from sklearn.feature_extraction.text import HashingVectorizer

WORD_VALUES = 2048
BYTE_BITS = 12
BYTE_VALUES = 2**BYTE_BITS
DIMENSION = WORD_VALUES + BYTE_VALUES
BYTE_LENGTHS = (4, 5)  # sequences of four and five bytes catch stems, code identifiers and languages without spaces
MOST_CHARACTERS = 2048  # of a longer text the beginning: halves the time, changes no score by 1 %
MIX = np.array([0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1], np.uint32)  # odd, bits well spread

_words = HashingVectorizer(n_features=WORD_VALUES, binary=True, ngram_range=(1, 2), dtype=np.float32)


def hashed(texts: Sequence[str]) -> csr_array:
    """One row a text, (texts, DIMENSION): its words and its byte sequences, each part of unit length."""
    heads = [text[:MOST_CHARACTERS].lower() for text in texts]
    words = _words.transform(heads)
    columns, values = [words.indices], [words.data]
    ends = [words.indptr]
    found = [_byte_sequences(head) for head in heads]
    columns.append(np.concatenate([WORD_VALUES + c for c, _ in found]))
    values.append(np.concatenate([v for _, v in found]))
    ends.append(np.cumsum([0] + [len(c) for c, _ in found]))
    rows = [np.repeat(np.arange(len(texts)), np.diff(end)) for end in ends]
    entries = (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns)))
    return csr_array(entries, shape=(len(texts), DIMENSION))


def _byte_sequences(text: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Columns and values of one text: the sign of each bucket's signed count, scaled to unit length."""
    raw = np.frombuffer(f" {text} ".encode("utf-8", "replace"), np.uint8).astype(np.uint32) + 1
    hashes = []
    for length in BYTE_LENGTHS:
        many = len(raw) - length + 1
        if many > 0:
            h = np.full(many, length, np.uint32)
            for offset in range(length):
                h = (h ^ raw[offset : offset + many]) * MIX[offset]
                h ^= h >> np.uint32(15)
            hashes.append(h)
    if not hashes:
        return np.zeros(0, np.int64), np.zeros(0, np.float32)
    h = np.concatenate(hashes)
    signs = np.where(h & np.uint32(1), 1.0, -1.0)
    counts = np.bincount(h >> np.uint32(32 - BYTE_BITS), signs, minlength=BYTE_VALUES)
    columns = np.flatnonzero(counts)
    return columns, (np.sign(counts[columns]) / np.sqrt(max(1, len(columns)))).astype(np.float32)
