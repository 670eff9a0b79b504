"""Serves vectors and scores in a worker's process, computed there or by a server. Loads no torch."""

from collections.abc import Callable
from statistics import median
from time import perf_counter

import structlog

from inference.embedding.pooling_engine import Encode, PoolingEngine
from inference.embedding.text_model import TextModel
from inference.prompt_format import load_prompt_format
from models.leasing.leases import WorkerOffer
from models.leasing.worker_registration import WorkerRegistration
from scheduling.costs import ProfiledCurves, ServingCurves
from settings import VERSION
from tasks.serving.model_in_service import ServedModel
from tasks.serving.worker_process import serve_until_signal

# The tokens of a forward pass on a GPU, padding included: fewer would not keep the GPU busy, with more, interactive
# requests would wait longer for a pass that has begun. Not tuned.
PASS_TOKENS_OF_A_GPU = 32_768
# The memory in which the planner places rows: the tokens of texts that wait in this process. It holds the largest call
# (`webapp/limits/text_limits.py`), and enough rows for the next batches to arrive before the process runs dry. Not
# tuned.
HELD_TOKENS = 2**19
HELD_ROWS = 512
# Passes that are measured at the start, the texts of each, and the words of each text. Not tuned.
TRIALS, TRIAL_TEXTS, TRIAL_WORDS = 3, 8, 64

log = structlog.get_logger()


def measured_token_s(encode: Encode, model: TextModel) -> float:
    """Returns the seconds of a token."""
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
    name: str,
    model: TextModel,
    device: str,
    encode: Encode,
    token_s: float,
    pass_tokens: int,
    fault: Callable[[], str | None] = lambda: None,
) -> int:
    """Serve until SIGTERM or SIGINT; returns the process's exit status. It gets no work while there is a `fault`."""
    announcement = WorkerRegistration(
        name=name,
        model=model.name,
        device=device,
        theta_bytes=HELD_TOKENS,
        delta_bytes=1,
        # a decoding step, which no row ever makes, must take some time in every curve
        curves=ProfiledCurves(ServingCurves((token_s, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 0.001)), quick=True),
        paged=True,
        version=VERSION,
    )
    served = ServedModel(
        lambda: PoolingEngine(encode, model.scores_pairs, pass_tokens),
        load_prompt_format(model.directory),
        announcement,
        offer=lambda: WorkerOffer(HELD_ROWS, fault()),
    )
    return serve_until_signal(name, lambda _: served)
