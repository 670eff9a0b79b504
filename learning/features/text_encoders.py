"""Text encoders: turn each text into a vector. The default hashes words; it needs no download and no torch."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
from sklearn.feature_extraction.text import HashingVectorizer

from extras import load

Vectors = npt.NDArray[np.float32]  # (texts, dimension)

# A cache keeps at most this many vectors. A refit reads at most 20,000 answers, so it encodes none of them twice. The
# vectors take 31 MB with 384 values each, and 61 MB with LaBSE's 768.
MOST_VECTORS = 20_000
DIGEST_BYTES = 16  # the chance that two of 20,000 texts have the same digest is 6e-31


class VectorCache:
    """Keeps the vectors of the most recently used texts: predictor and trainer read the same texts repeatedly."""

    def __init__(self, encode: Callable[[list[str]], Vectors], dimension: int, most: int = MOST_VECTORS) -> None:
        """`encode` returns the vectors of texts, (texts, dimension)."""
        self._encode, self._dimension, self._most = encode, dimension, most
        self._vectors: OrderedDict[bytes, Vectors] = OrderedDict()

    def __len__(self) -> int:
        return len(self._vectors)

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Return vectors of these texts, (texts, dimension); unknown texts are encoded in one call."""
        keys = [blake2b(text.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest() for text in texts]
        new = {key: text for key, text in zip(keys, texts, strict=True) if key not in self._vectors}
        if new:
            encoded = self._encode(list(new.values()))
            self._vectors.update((key, vector.copy()) for key, vector in zip(new, encoded, strict=True))
        found = np.empty((len(texts), self._dimension), np.float32)
        for row, key in enumerate(keys):
            found[row] = self._vectors[key]
            self._vectors.move_to_end(key)
        while len(self._vectors) > self._most:
            self._vectors.popitem(last=False)
        return found


HASHING = "hashing"  # the default of MAGNUS_ENCODER


class Encoder(Protocol):
    """Turns texts into vectors of `dimension` numbers; `make_encoder` makes it from its `name`."""

    name: str
    dimension: int

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Return vectors of these texts, (texts, dimension)."""
        ...


class HashingEncoder:
    """Signed counts of hashed words, in vectors of LaBSE's size (768) and unit length."""

    name = HASHING
    dimension = 768

    def __init__(self) -> None:
        self._hash = HashingVectorizer(n_features=self.dimension, dtype=np.float32)

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Return vectors of these texts, (texts, 768)."""
        if not texts:
            return np.zeros((0, self.dimension), np.float32)
        vectors: Vectors = self._hash.transform(texts).toarray()
        return vectors


class UnusableEncoder(Exception):
    """A sentence-transformers model cannot be loaded."""

    def __init__(self, name: str, error: Exception) -> None:
        self.name = name
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        if "trust_remote_code" in str(error):
            reason = "it needs Python code of its own, which Magnus never runs"
        super().__init__(f"the text encoder {name} cannot be loaded: {reason}")


@lru_cache(maxsize=2)
def make_encoder(name: str) -> Encoder:
    """Return the encoder of this name, loaded once a process: `hashing`, or a sentence-transformers model.

    Raises UnusableEncoder, or ExtraMissing for a sentence-transformers model in a base install.
    """
    if name == HASHING:
        return HashingEncoder()
    if Path(name).is_absolute() and not Path(name).is_dir():  # refused before torch is loaded and the hub is asked
        raise UnusableEncoder(name, NotADirectoryError("there is no such directory"))
    encoder: Encoder = load("learning.features.sentence_encoder", f"the text encoder {name}").SentenceEncoder(name)
    return encoder
