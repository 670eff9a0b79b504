"""A worker's process with another engine's server: waits for the server, then serves batches with it.

It loads no model and no torch.
"""

import logging
from time import monotonic

import structlog
from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_fixed

from inference.remote.remote_engine import RemoteEngine
from inference.remote.server_capabilities import ProbedServer, tokenizer_source
from inference.remote.server_errors import ServerUnusable
from inference.remote.server_probe import EngineChoice, connect
from inference.remote.server_tokens import load_request_tokens
from learning.step_costs import StepWindow
from models.leasing.leases import WorkerOffer
from models.leasing.worker_registration import WorkerRegistration
from settings import VERSION
from tasks.app import settings
from tasks.serving.model_in_service import ServedModel
from tasks.serving.serving_costs import LearnedCosts, UnseenSamples
from tasks.serving.worker_process import prepare_process, serve_until_signal

CONNECT_AGAIN_S = 2.0  # seconds between two tries while the server is not up. Not tuned
# A server that does not report its memory is assumed to hold this many rows of the longest prompt and answer. With such
# a server `max_rows` decides how many rows run; this only limits policies that ignore it. Not tuned.
ASSUMED_ROWS = 64

log = structlog.get_logger()


def run_remote_worker(
    name: str, url: str, kind: EngineChoice, capacity_tokens: int | None, max_rows: int | None
) -> int:
    """Serve until SIGTERM or SIGINT; returns the process's exit status."""
    prepare_process(name)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs each request
    key = settings.engine_key_text
    until_it_is_up = Retrying(
        retry=retry_if_exception_type(ServerUnusable),
        wait=wait_fixed(CONNECT_AGAIN_S),
        before_sleep=_log_that_it_is_unusable,
    )
    server: ProbedServer = until_it_is_up(connect, url, kind, key, settings.model_name, capacity_tokens, max_rows)
    prompt_format = load_request_tokens(tokenizer_source(server, settings.chosen_model), key)
    engines: list[RemoteEngine] = []
    unseen = UnseenSamples()
    logged_fault: list[str | None] = [None]  # the fault that was logged last

    def make_remote_engine() -> RemoteEngine:
        while engines:
            engines.pop().close()
        engines.append(RemoteEngine(server, prompt_format.detokenizer, settings.stall_s / 2))
        return engines[-1]

    def new_windows(now: float) -> list[StepWindow]:
        return [one for engine in engines for one in unseen.windows(list(engine.watch.samples.samples), now)]

    costs = LearnedCosts(new_windows)

    def offer() -> WorkerOffer:
        watches = [engine.watch for engine in engines]
        if not watches:
            return WorkerOffer(fault="its engine is made anew")
        offered = watches[0].offer
        if offered.fault not in logged_fault:
            logged_fault[:] = [offered.fault]
            log.warning("engine set aside" if offered.fault else "engine usable", why=offered.fault, url=server.url)
        return WorkerOffer(offered.max_rows, offered.fault, costs.curves(monotonic()))

    announcement = WorkerRegistration(
        name=name,
        model=settings.model_name or server.client_name,
        device=f"{server.kind} {server.url}",
        theta_bytes=server.capacity_tokens or _assumed_capacity_tokens(server),
        delta_bytes=1,
        curves=None,
        paged=server.capabilities.paged,
        block_tokens=server.capabilities.block_tokens,
        lacks=server.capabilities.lacks,
        adapters=server.adapters,
        prefix_cache=server.capabilities.prefix_cache,
        version=VERSION,
    )
    try:
        return serve_until_signal(
            name, lambda model: ServedModel(make_remote_engine, prompt_format, announcement, offer)
        )
    finally:
        while engines:
            engines.pop().close()


def _assumed_capacity_tokens(server: ProbedServer) -> int:
    longest = settings.assumed_prompt_tokens + settings.max_output_tokens
    return (server.max_rows or ASSUMED_ROWS) * min(longest, server.max_positions or longest)


def _log_that_it_is_unusable(tried: RetryCallState) -> None:
    log.warning("engine not usable yet", error=str(tried.outcome and tried.outcome.exception()))
