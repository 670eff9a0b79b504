"""A worker's process that computes vectors or scores of texts with a sentence-transformers model."""

from functools import partial
from statistics import median
from time import perf_counter

import structlog
import torch

from inference.embedding.model_loading import load_encode
from inference.embedding.pooling_engine import Encode, PoolingEngine
from inference.embedding.text_model import TextModel, read_text_model
from inference.prompt_format import load_prompt_format
from learning.whole_weights import whole_weights_only
from models.leasing.leases import WorkerOffer
from models.leasing.worker_registration import WorkerRegistration
from scheduling.costs import ProfiledCurves, ServingCurves
from settings import VERSION
from tasks.app import settings
from tasks.serving.model_in_service import ServedModel
from tasks.serving.worker_process import in_a_thread_that_ends, prepare_process, serve_until_signal

# Tokens of a forward pass, padding included. On a CPU a pass of MiniLM takes 0.1 to 0.3 s, and larger ones are no
# faster; a GPU needs more tokens at once to be busy. Interactive requests wait for a pass that has begun. Not tuned.
PASS_TOKENS = {"cpu": 2048}
PASS_TOKENS_OF_A_GPU = 32_768
# The memory in which the planner places rows: the tokens of texts that wait in this process. It holds the largest call
# (`webapp/limits/text_limits.py`), and enough rows for the next batches to arrive before the process runs dry. Not
# tuned.
HELD_TOKENS = 2**19
HELD_ROWS = 512
# Passes that are measured at the start, the texts of each, and the words of each text. Not tuned.
TRIALS, TRIAL_TEXTS, TRIAL_WORDS = 3, 8, 64

log = structlog.get_logger()


def run_embedding_worker(name: str, model: str, directory: str, device: str) -> int:
    """Serve until SIGTERM or SIGINT; returns the process's exit status. Raises UnreadableModel."""
    prepare_process(name)
    if device == "auto":
        device = "cuda:0" if torch.cuda.is_available() else "cpu"
    text_model = read_text_model(model, directory)
    encode, token_s = in_a_thread_that_ends(partial(_load_and_measure, text_model, device))
    announcement = WorkerRegistration(
        name=name,
        model=model,
        device=device,
        theta_bytes=HELD_TOKENS,
        delta_bytes=1,
        # a decoding step, which no row ever makes, must take some time in every curve
        curves=ProfiledCurves(ServingCurves((token_s, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 0.001)), quick=True),
        paged=True,
        version=VERSION,
    )
    served = ServedModel(
        lambda: PoolingEngine(encode, text_model.scores_pairs, PASS_TOKENS.get(device, PASS_TOKENS_OF_A_GPU)),
        load_prompt_format(directory),
        announcement,
        offer=lambda: WorkerOffer(max_rows=HELD_ROWS),
    )
    return serve_until_signal(name, lambda _: served)


def _load_and_measure(model: TextModel, device: str) -> tuple[Encode, float]:
    """Returns the model's function with the seconds of a token."""
    if settings.torch_threads:
        torch.set_num_threads(settings.torch_threads)
    with whole_weights_only():
        encode = load_encode(model, device)
    text = "word " * TRIAL_WORDS
    (*_, tokens) = model.item_tokens([text, text], queries=1)
    items, seconds = [(text, text) if model.scores_pairs else text] * TRIAL_TEXTS, []
    for _ in range(TRIALS):
        began = perf_counter()
        encode(items)
        seconds.append(perf_counter() - began)
    token_s = median(seconds) / (TRIAL_TEXTS * min(tokens, model.max_tokens))
    log.info("measured", tokens_a_second=round(1 / token_s))
    return encode, token_s
