"""A worker's process that computes vectors or scores of texts with a sentence-transformers model."""

from functools import partial

import torch

from inference.accelerator import chosen_device
from inference.embedding.model_loading import load_encode
from inference.embedding.pooling_engine import Encode
from inference.embedding.text_model import TextModel, read_text_model
from learning.features.whole_weights import whole_weights_only
from tasks.serving.text_serving import PASS_TOKENS_OF_A_GPU, measured_token_s, serve_texts
from tasks.serving.worker_process import in_a_thread_that_ends, prepare_process

# Tokens of a forward pass on a CPU, padding included: such a pass of MiniLM takes 0.1 to 0.3 s; larger are no faster.
PASS_TOKENS = {"cpu": 2048}


def run_embedding_worker(name: str, model: str, directory: str, device: str) -> int:
    """Serves until SIGTERM or SIGINT; returns the process's exit status. Raises UnreadableModel."""
    service = prepare_process(name)
    device = chosen_device(device)
    text_model = read_text_model(model, directory)
    load = partial(_load_and_measure, text_model, device, service.settings.torch_threads)
    encode, token_s = in_a_thread_that_ends(load)
    pass_tokens = PASS_TOKENS.get(device, PASS_TOKENS_OF_A_GPU)
    return serve_texts(service, name, text_model, device, encode, token_s, pass_tokens)


def _load_and_measure(model: TextModel, device: str, threads: int | None) -> tuple[Encode, float]:
    """Returns the function that encodes texts with the model, and the seconds that it takes for a token."""
    if threads:
        torch.set_num_threads(threads)
    with whole_weights_only():
        encode = load_encode(model, device)
    return encode, measured_token_s(encode, model)
