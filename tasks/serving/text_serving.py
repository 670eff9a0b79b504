"""Serves vectors and scores of texts, which the worker's process or a server computes. Does not import torch."""

import logging
from collections.abc import Callable
from statistics import median
from time import perf_counter

import structlog

from inference.embedding.pooling_engine import Encode, PoolingEngine
from inference.embedding.pooling_server import PoolingServer
from inference.embedding.text_model import TextModel, read_text_model
from inference.prompts.prompt_format import load_prompt_format
from processes.celery.celery_app import CeleryService
from scheduling.costs import ProfiledCurves, ServingCurves
from scheduling.kv_memory import KvMemory
from scheduling.worker_facts import WorkerFacts, WorkerReport
from tasks.serving.batches.served_model import ServedModel
from tasks.serving.remote_worker import until_it_is_usable
from tasks.serving.worker_process import prepare_process, serve_until_signal

# The tokens of a forward pass on a GPU, padding included. Fewer would not keep the GPU busy; with more, interactive
# requests would wait longer for a pass that has begun. Not tuned.
PASS_TOKENS_OF_A_GPU = 32_768
# The planner gives this process at most as many tokens and rows of waiting texts, as if they were its memory. They hold
# the largest call (`protocol/limits/text_limits.py`), and enough rows for the next batches to arrive before the process
# runs dry. Not tuned.
HELD_TOKENS = 2**19
HELD_ROWS = 512
# The number of passes measured at the start, of texts in each pass, and of words in each text. Not tuned.
TRIALS, TRIAL_TEXTS, TRIAL_WORDS = 3, 8, 64

log = structlog.get_logger()


def measured_token_s(encode: Encode, model: TextModel) -> float:
    """Returns the seconds that the model takes for a token, measured in a few passes."""
    text = "word " * TRIAL_WORDS
    (*_, tokens) = model.item_tokens([text, text], queries=1)
    items, seconds = [(text, text) if model.scores_pairs else text] * TRIAL_TEXTS, []
    for _ in range(TRIALS):
        began = perf_counter()
        encode(items)
        seconds.append(perf_counter() - began)
    token_s = median(seconds) / (TRIAL_TEXTS * min(tokens, model.max_tokens))
    log.info("measured", tokens_a_second=round(1 / token_s))
    return token_s


def serve_texts(
    service: CeleryService,
    name: str,
    model: TextModel,
    device: str,
    encode: Encode,
    token_s: float,
    pass_tokens: int,
    fault: Callable[[], str | None] = lambda: None,
) -> int:
    """Serves until SIGTERM or SIGINT; returns the exit status. The worker gets no work while there is a `fault`."""
    # a decoding step, which no row ever makes, must take some time in every curve
    curves = ProfiledCurves(ServingCurves((token_s, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 0.001)), quick=True)
    memory = KvMemory(HELD_TOKENS, 1, paged=True, max_rows=HELD_ROWS)
    served = ServedModel(
        lambda: PoolingEngine(encode, model.scores_pairs, pass_tokens),
        load_prompt_format(model.directory),
        WorkerFacts(name, model.name, device, memory, curves),
        report=lambda: WorkerReport(fault=fault()),
    )
    return serve_until_signal(service, name, lambda _: served)


def run_remote_embedding_worker(name: str, model: str, directory: str, url: str) -> int:
    """Serves with a vLLM server of the runner `pooling` until a signal; returns the status. Raises UnreadableModel."""
    service = prepare_process(name)
    settings = service.settings
    logging.getLogger("httpx").setLevel(logging.WARNING)  # httpx logs each request
    text_model = read_text_model(model, directory)
    within_s = settings.stall_s / 5  # a step waits for at most four answers: to texts, to a single row's, to trials
    server = until_it_is_usable()(PoolingServer, url, settings.engine_key_text, text_model, within_s)
    token_s = measured_token_s(server.encode, text_model)
    return serve_texts(
        service, name, text_model, f"vllm {url}", server.encode, token_s, PASS_TOKENS_OF_A_GPU, lambda: server.fault
    )
