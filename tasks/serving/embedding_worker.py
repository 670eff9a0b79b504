"""A worker's process that computes vectors or scores of texts with a sentence-transformers model."""

from functools import partial

import torch

from inference.accelerator import chosen_device
from inference.embedding.model_loading import load_encode
from inference.embedding.pooling_engine import Encode
from inference.embedding.text_model import TextModel, read_text_model
from learning.whole_weights import whole_weights_only
from tasks.app import settings
from tasks.serving.text_serving import PASS_TOKENS_OF_A_GPU, measured_token_s, serve_texts
from tasks.serving.worker_process import in_a_thread_that_ends, prepare_process

# Tokens of a forward pass on a CPU, padding included: one of MiniLM takes 0.1 to 0.3 s, and larger ones are no faster.
PASS_TOKENS = {"cpu": 2048}


def run_embedding_worker(name: str, model: str, directory: str, device: str) -> int:
    """Serve until SIGTERM or SIGINT; returns the process's exit status. Raises UnreadableModel."""
    prepare_process(name)
    device = chosen_device(device)
    text_model = read_text_model(model, directory)
    encode, token_s = in_a_thread_that_ends(partial(_load_and_measure, text_model, device))
    return serve_texts(name, text_model, device, encode, token_s, PASS_TOKENS.get(device, PASS_TOKENS_OF_A_GPU))


def _load_and_measure(model: TextModel, device: str) -> tuple[Encode, float]:
    """Returns the model's function with the seconds of a token."""
    if settings.torch_threads:
        torch.set_num_threads(settings.torch_threads)
    with whole_weights_only():
        encode = load_encode(model, device)
    return encode, measured_token_s(encode, model)
