"""Vectors of texts that were encoded before, because predictor and trainer meet the same texts again and again."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]

# Vectors kept, the most recently used. A refit reads at most 20,000 answers, so it encodes none of them twice; with 384
# values a vector that is 31 MB, with LaBSE's 768 it is 61 MB.
MOST_VECTORS = 20_000
DIGEST_BYTES = 16  # two of 20,000 texts have the same digest with a chance of 6e-31


class VectorCache:
    """Encodes each text once for as long as it is among the most recently used ones."""

    def __init__(self, encode: Callable[[list[str]], Vectors], dimension: int, most: int = MOST_VECTORS) -> None:
        """`encode` gives vectors of these texts, (texts, dimension)."""
        self._encode, self._dimension, self._most = encode, dimension, most
        self._vectors: OrderedDict[bytes, Vectors] = OrderedDict()

    def __len__(self) -> int:
        return len(self._vectors)

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Vectors of these texts, (texts, dimension); those that are new are encoded in one call."""
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
