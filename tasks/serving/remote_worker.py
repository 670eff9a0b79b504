"""Serves with another engine's server, without model or torch of its own; of several models one at a time."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from time import monotonic

import structlog
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, stop_never, wait_fixed

from inference.remote.on_demand import OnDemandServer, find_server
from inference.remote.remote_engine import RemoteEngine
from inference.remote.server_capabilities import ProbedServer, tokenizer_source
from inference.remote.server_errors import ServerUnusable
from inference.remote.server_probe import EngineChoice, connect
from inference.remote.server_tokens import load_request_tokens
from inference.request_tokens import RequestTokens
from learning.cost_curves import DEFAULT_CURVES
from learning.step_costs import StepWindow
from models.leasing.leases import WorkerOffer
from models.leasing.worker_registration import WorkerRegistration
from scheduling.kv_memory import KvMemory
from scheduling.policy import Loadable
from settings import VERSION
from tasks.app import settings
from tasks.serving.model_in_service import ServedModel, mean_change_s
from tasks.serving.serving_costs import LearnedCosts, UnseenSamples
from tasks.serving.worker_process import heartbeat_of, in_a_thread_that_ends, prepare_process, serve_until_signal

CONNECT_AGAIN_S = 2.0  # seconds between two tries while the server is not up. Not tuned
# A worker that has one model tries this often to load another one before it leaves it out: a broken connection is no
# reason to let its requests wait until the worker is started again.
LOAD_TRIES = 2
# A server that does not report its memory is assumed to hold this many rows of the longest prompt and answer. With such
# a server `max_rows` decides how many rows run; this only limits policies that ignore it. Not tuned.
ASSUMED_ROWS = 64

log = structlog.get_logger()


def run_remote_worker(
    name: str,
    url: str,
    kind: EngineChoice,
    capacity_tokens: int | None,
    max_rows: int | None,
    models: Mapping[str, str],
) -> int:
    """Serve the server's models (empty: its only one), by name, until a signal; returns the exit status."""
    prepare_process(name)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs each request
    remote = RemoteModels(name, url, kind, capacity_tokens, max_rows, models)
    first, *others = models or ("",)
    load = partial(until_it_is_usable(LOAD_TRIES), remote.load)
    until_it_is_usable()(remote.load, first)
    for model in others:  # so that the planner knows what each is worth
        try:
            load(model)
        except ServerUnusable as error:
            log.warning("model left out", model=model, why=str(error))
    try:
        return serve_until_signal(name, load, first)
    finally:
        remote.close()


def until_it_is_usable(tries: int | None = None) -> Retrying:
    """Returns tenacity's object that calls a function again while it raises ServerUnusable, at most `tries` times."""
    return Retrying(
        retry=retry_if_exception_type(ServerUnusable),
        stop=stop_never if tries is None else stop_after_attempt(tries),
        reraise=True,
        wait=wait_fixed(CONNECT_AGAIN_S),
        before_sleep=_log_that_it_is_unusable,
    )


@dataclass(slots=True)
class RemoteModel:
    """A model of a server and its facts; `change_s` is the mean of the last changes to it, 0 before the first."""

    server: ProbedServer
    prompt_format: RequestTokens
    engine: RemoteEngine | None = None
    change_s: float = 0.0
    costs: LearnedCosts = field(init=False)
    _unseen: UnseenSamples = field(default_factory=UnseenSamples)

    def __post_init__(self) -> None:
        self.costs = LearnedCosts(self._new_windows)

    def _new_windows(self, now: float) -> list[StepWindow]:
        engine = self.engine
        return [] if engine is None else self._unseen.windows(list(engine.watch.samples.samples), now)

    @property
    def memory(self) -> KvMemory:
        """Its cache, counted in tokens of one byte."""
        able = self.server.capabilities
        theta = self.server.capacity_tokens or _assumed_capacity_tokens(self.server)
        return KvMemory(theta, 1, able.paged, able.block_tokens, self.server.max_rows)

    def make_engine(self) -> RemoteEngine:
        """Returns a new engine in place of the last one."""
        self.close()
        # a server that dropped an idle model loads it again before the first token
        silent_s = settings.stall_s / 2 + self.change_s
        self.engine = RemoteEngine(self.server, self.prompt_format.detokenizer, silent_s)
        return self.engine

    def close(self) -> None:
        """End its engine, if it has one."""
        engine, self.engine = self.engine, None
        if engine is not None:
            engine.close()


class RemoteModels:
    """The models of one server, of which one is served at a time."""

    def __init__(
        self,
        name: str,
        url: str,
        kind: EngineChoice,
        capacity_tokens: int | None,
        max_rows: int | None,
        models: Mapping[str, str],
    ) -> None:
        """Asks the server nothing yet; see `run_remote_worker`."""
        self._name, self._url, self._kind = name, url, kind
        self._bounds, self._models = (capacity_tokens, max_rows), dict(models)
        self._known: dict[str, RemoteModel] = {}
        self._on_demand: OnDemandServer | None = None
        self._heartbeat = heartbeat_of(name)
        self._logged_fault: str | None = None

    def load(self, model: str) -> ServedModel:
        """Let the server load a model, and measure how long it takes; raises ServerUnusable."""
        self.close()
        try:
            known = in_a_thread_that_ends(partial(self._load, model), self._heartbeat)
        except Exception:
            self._known.pop(model, None)  # so that the planner does not order it again
            raise
        memory, server = known.memory, known.server
        several = len(self._known) > 1
        announcement = WorkerRegistration(
            name=self._name,
            model=model or settings.model_name or server.client_name,
            device=f"{server.kind} {server.url}",
            theta_bytes=memory.theta_bytes,
            delta_bytes=memory.delta_bytes,
            curves=None,
            paged=memory.paged,
            block_tokens=memory.block_tokens,
            lacks=server.capabilities.lacks,
            adapters=() if several else server.adapters,
            prefix_cache=server.capabilities.prefix_cache,
            version=VERSION,
            loadable={name: self._loadable(one) for name, one in self._known.items()} if several else {},
        )
        return ServedModel(known.make_engine, known.prompt_format, announcement, partial(self._offer, known))

    def close(self) -> None:
        """End the engine of the model in service."""
        for one in self._known.values():
            one.close()

    def _load(self, model: str) -> RemoteModel:
        key, directory = settings.engine_key_text, self._models.get(model)
        if directory is None:  # the only model of the server
            if model not in self._known:
                server = connect(self._url, self._kind, key, settings.model_name, *self._bounds)
                source = tokenizer_source(server, settings.chosen_model)
                self._known[model] = RemoteModel(server, load_request_tokens(source, key))
            return self._known[model]
        on_demand = self._on_demand = self._on_demand or find_server(self._url, self._kind, key)
        was_loaded = model in on_demand.loaded()
        seconds = on_demand.change_s(model, directory)
        log.info("model loaded", model=model, seconds=round(seconds, 2), already=was_loaded)
        if model not in self._known:
            address = on_demand.address(model)
            named = model if address == on_demand.url else None  # below its own address there is no other one
            server = connect(address, self._kind, key, named, *self._bounds, directory)
            self._known[model] = RemoteModel(server, load_request_tokens(directory, key))
        known = self._known[model]
        if not was_loaded:
            known.change_s = mean_change_s(known.change_s, seconds)
        return known

    def _loadable(self, model: RemoteModel) -> Loadable:
        """Returns a model that can be loaded as the planner sees it; one never loaded takes as long as the others."""
        measured = [one.change_s for one in self._known.values() if one.change_s]
        change_s = model.change_s or (sum(measured) / len(measured) if measured else 0.0)
        learned = model.costs.curves(monotonic())
        return Loadable(
            max(settings.heartbeat_s, change_s), model.memory, (learned and learned.curves) or DEFAULT_CURVES
        )

    def _offer(self, model: RemoteModel) -> WorkerOffer:
        if model.engine is None:
            return WorkerOffer(fault="its engine is made anew")
        offered = model.engine.watch.offer
        if offered.fault != self._logged_fault:
            self._logged_fault = offered.fault
            log.warning("engine set aside" if offered.fault else "engine usable", why=offered.fault, url=self._url)
        return WorkerOffer(offered.max_rows, offered.fault, model.costs.curves(monotonic()))


def _assumed_capacity_tokens(server: ProbedServer) -> int:
    longest = settings.assumed_prompt_tokens + settings.max_output_tokens
    return (server.max_rows or ASSUMED_ROWS) * min(longest, server.max_positions or longest)


def _log_that_it_is_unusable(tried: RetryCallState) -> None:
    log.warning("engine not usable yet", error=str(tried.outcome and tried.outcome.exception()))
