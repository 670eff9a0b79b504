"""Loads a model with sentence-transformers, whose own `encode` and `predict` compute every answer."""

import torch
from sentence_transformers import CrossEncoder, SentenceTransformer

from inference.accelerator import free_bytes
from inference.embedding.pooling_engine import Encode
from inference.embedding.text_model import TextModel
from inference.embedding.vectors import Vectors
from inference.engine_errors import OutOfMemory, UnreadableModel


def load_encode(model: TextModel, device: str) -> Encode:
    """Returns the function that encodes texts, or pairs of texts, in one forward pass; raises UnreadableModel.

    If the library allows fewer tokens than `read_text_model` found, it would cut texts silently: the model is refused.
    """
    loaded: SentenceTransformer | CrossEncoder
    try:
        if model.scores_pairs:
            loaded = CrossEncoder(model.directory, device=device, trust_remote_code=False)
        else:
            loaded = SentenceTransformer(model.directory, device=device, trust_remote_code=False)
    except Exception as error:  # transformers raises errors of any kind for files that it cannot use
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise UnreadableModel(model.directory, reason) from error
    if (loaded.max_seq_length or model.max_tokens) < model.max_tokens:
        found = f"its files allow {model.max_tokens} tokens, but sentence-transformers {loaded.max_seq_length}"
        raise UnreadableModel(model.directory, found)
    compute = loaded.predict if isinstance(loaded, CrossEncoder) else loaded.encode

    def encode(items: list[object]) -> Vectors:
        try:
            found: Vectors = compute(items, batch_size=len(items), show_progress_bar=False)
        except torch.OutOfMemoryError as error:
            free = free_bytes(torch.device(device))
            raise OutOfMemory(needed_bytes=free + 1, budget_bytes=free) from error
        return found

    return encode
