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

Vectors = npt.NDArray[np.float32]  # (texts, dimension)

# Vectors kept. A refit reads at most 20,000 answers, so it encodes none of them twice. They take 31 MB with 384 values
# a vector, and 61 MB with LaBSE's 768.
MOST_VECTORS = 20_000
DIGEST_BYTES = 16  # two of 20,000 texts have the same digest with a chance of 6e-31


class VectorCache:
    """Keeps the vectors of the most recently used texts: predictor and trainer read the same texts repeatedly."""

    def __init__(self, encode: Callable[[list[str]], Vectors], dimension: int, most: int = MOST_VECTORS) -> None:
        """Take a function `encode` that returns vectors of texts, (texts, dimension)."""
        self._encode, self._dimension, self._most = encode, dimension, most
        self._vectors: OrderedDict[bytes, Vectors] = OrderedDict()

    def __len__(self) -> int:
        return len(self._vectors)

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Return vectors of these texts, (texts, dimension); encode the new ones in one call."""
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
# Texts encoded together, padded to the longest: of 1, 8 and 32 chat prompts at once, 8 took the least CPU time.
BATCH = 8


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


class SentenceEncoder:
    """A sentence-transformers model by name or path; the paper's is sentence-transformers/LaBSE.

    One thread encodes texts on the CPU: with two threads on two busy cores a chat prompt took 47 ms of CPU time, most
    of it in barriers, with one thread 20 ms. Native bfloat16 took 0.6 times as long, and its vectors' cosine with those
    in float32 was at least 0.998. Raises UnusableEncoder.
    """

    def __init__(self, name: str) -> None:
        if Path(name).is_absolute() and not Path(name).is_dir():  # says so before torch is loaded and the hub is asked
            raise UnusableEncoder(name, NotADirectoryError("there is no such directory"))
        # Imported here because they load torch, which processes with the hashing encoder must not.
        import torch
        from sentence_transformers import SentenceTransformer

        from learning.whole_weights import whole_weights_only

        torch.set_num_threads(1)
        self.name = name
        dtype = torch.bfloat16 if torch.cpu._is_avx512_bf16_supported() else torch.float32
        try:
            with whole_weights_only():
                self._model = SentenceTransformer(
                    name, device="cpu", trust_remote_code=False, model_kwargs={"dtype": dtype}
                )
        except Exception as error:  # transformers raises errors of any kind for files that it cannot use
            raise UnusableEncoder(name, error) from error
        self.dimension = len(self._model.encode([""], show_progress_bar=False)[0])
        self._cache = VectorCache(self._encode_new, self.dimension)

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Return vectors of these texts, (texts, dimension), from the cache where it has them."""
        return self._cache.encode(texts)

    def _encode_new(self, texts: list[str]) -> Vectors:
        encoded = self._model.encode(texts, batch_size=BATCH, show_progress_bar=False)
        vectors = np.asarray(encoded, np.float32)  # normalised only here, because bfloat16 has three digits
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return np.asarray(vectors / np.maximum(lengths, 1e-12), np.float32)


@lru_cache(maxsize=2)
def make_encoder(name: str) -> Encoder:
    """Return the encoder of this name, loaded once a process; names but `hashing` are sentence-transformers models."""
    return HashingEncoder() if name == HASHING else SentenceEncoder(name)
