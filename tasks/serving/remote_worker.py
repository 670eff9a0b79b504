"""The process of a worker whose engine is a server of others: waits for the server, then serves batches with it.

It loads no model and no torch.
"""

from time import sleep

import structlog

from inference.prompt_format import load_prompt_format
from inference.remote.remote_engine import RemoteEngine
from inference.remote.server_capabilities import ProbedServer, tokenizer_source
from inference.remote.server_errors import ServerUnusable
from inference.remote.server_probe import EngineChoice, connect
from models.leases import WorkerOffer, WorkerRegistration
from tasks.app import settings
from tasks.serving.worker_process import prepare_process, serve_until_signal

CONNECT_AGAIN_S = 2.0  # between two tries of a server that is not up yet; shorter asks more often. Not tuned
# Of a server that does not say how much its memory holds: no request is too long for it, its cap on rows is what binds.
UNKNOWN_CAPACITY_TOKENS = 2**31

log = structlog.get_logger()


def run_remote_worker(
    name: str, url: str, kind: EngineChoice, capacity_tokens: int | None, max_rows: int | None
) -> int:
    """Serve until SIGTERM or SIGINT; returns the process's exit status."""
    prepare_process(name)
    key = settings.engine_key.get_secret_value() if settings.engine_key else None
    server = _connect_once_up(url, kind, key, capacity_tokens, max_rows)
    prompt_format = load_prompt_format(
        tokenizer_source(server, settings.model if "model" in settings.model_fields_set else None)
    )
    engines: list[RemoteEngine] = []

    def make_remote_engine() -> RemoteEngine:
        while engines:
            engines.pop().close()
        engines.append(RemoteEngine(server, prompt_format.detokenizer, settings.stall_s / 2))
        return engines[-1]

    def offer() -> WorkerOffer:
        if not engines:
            return WorkerOffer(fault="its engine is made anew")
        offered = engines[-1].watch.offer
        return WorkerOffer(offered.max_rows, offered.fault)

    announcement = WorkerRegistration(
        name=name,
        model=settings.model_name or server.client_name,
        device=f"{server.kind} {server.url}",
        theta_bytes=server.capacity_tokens or UNKNOWN_CAPACITY_TOKENS,
        delta_bytes=1,
        curves=None,
        paged=server.capabilities.paged,
        block_tokens=server.capabilities.block_tokens,
    )
    try:
        return serve_until_signal(make_remote_engine, prompt_format, announcement, offer)
    finally:
        while engines:
            engines.pop().close()


def _connect_once_up(
    url: str, kind: EngineChoice, key: str | None, capacity_tokens: int | None, max_rows: int | None
) -> ProbedServer:
    while True:
        try:
            return connect(url, kind, key, settings.model_name, capacity_tokens, max_rows)
        except ServerUnusable as error:
            log.warning("engine not usable yet", error=str(error))
            sleep(CONNECT_AGAIN_S)
