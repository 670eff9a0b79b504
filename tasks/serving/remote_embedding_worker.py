"""A worker's process that lets a vLLM server of the runner `pooling` compute vectors or scores. Loads no torch."""

import logging

from inference.embedding.pooling_server import PoolingServer
from inference.embedding.text_model import read_text_model
from tasks.app import settings
from tasks.serving.remote_worker import until_it_is_usable
from tasks.serving.text_serving import PASS_TOKENS_OF_A_GPU, measured_token_s, serve_texts
from tasks.serving.worker_process import prepare_process


def run_remote_embedding_worker(name: str, model: str, directory: str, url: str) -> int:
    """Serve until SIGTERM or SIGINT; returns the process's exit status. Raises UnreadableModel."""
    prepare_process(name)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs each request
    text_model = read_text_model(model, directory)
    server = until_it_is_usable()(PoolingServer, url, settings.engine_key_text, text_model, settings.stall_s / 2)
    token_s = measured_token_s(server.encode, text_model)
    return serve_texts(
        name, text_model, f"vllm {url}", server.encode, token_s, PASS_TOKENS_OF_A_GPU, lambda: server.fault
    )
