"""Text encoders of sentence-transformers. This file imports torch, so `text_encoders.make_encoder` loads it by name."""

from collections.abc import Sequence

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from learning.features.text_encoders import UnusableEncoder, VectorCache, Vectors
from learning.features.whole_weights import whole_weights_only

# This many texts are encoded together, padded to the longest: of 1, 8 and 32 chat prompts, 8 took the least CPU time.
BATCH = 8


class SentenceEncoder:
    """A sentence-transformers model by name or path; the paper's is sentence-transformers/LaBSE.

    One thread encodes texts on the CPU: on two busy cores a chat prompt took 47 ms of CPU time with two threads, most
    of it in barriers, and 20 ms with one thread. Native bfloat16 took 0.6 times as long as float32, and the cosine
    between the vectors of both was at least 0.998. Raises UnusableEncoder.
    """

    def __init__(self, name: str) -> None:
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
        vectors = np.asarray(encoded, np.float32)  # normalised below in float32, because bfloat16 has three digits
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return np.asarray(vectors / np.maximum(lengths, 1e-12), np.float32)
