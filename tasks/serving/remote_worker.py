"""A worker's process that serves with another engine's server, one of its models at a time; does not import torch."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic

import structlog
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, stop_never, wait_fixed

from inference.prompts.request_tokens import RequestTokens
from inference.remote.on_demand import OnDemandServer, find_server
from inference.remote.remote_engine import RemoteEngine
from inference.remote.server_capabilities import ProbedServer, tokenizer_source
from inference.remote.server_errors import ServerUnusable
from inference.remote.server_fingerprint import server_fingerprints
from inference.remote.server_probe import EngineChoice, connect
from inference.remote.server_tokens import load_request_tokens
from learning.estimators.cost_curves import DEFAULT_CURVES
from processes.celery.celery_app import CeleryService
from scheduling.costs import StepWindow
from scheduling.kv_memory import KvMemory
from scheduling.worker_facts import Loadable, WorkerFacts, WorkerReport
from settings import Settings
from tasks.serving.batches.served_model import ServedModel
from tasks.serving.batches.serving_costs import LearnedCosts
from tasks.serving.model_in_service import mean_change_s
from tasks.serving.worker_process import heartbeat_of, in_a_thread_that_ends, prepare_process, serve_until_signal

CONNECT_AGAIN_S = 2.0  # seconds between two tries while the server is not up. Not tuned
# A worker tries this often to load a further model before it leaves that model out, because a broken connection is no
# reason to let the model's requests wait until the worker is started again.
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
    """Serves these models of the server, or its only one if `models` is empty, until a signal; returns the status."""
    service = prepare_process(name)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # httpx logs each request
    remote = RemoteModels(service, name, url, kind, capacity_tokens, max_rows, models)
    first, *others = models or ("",)
    load = partial(until_it_is_usable(LOAD_TRIES), remote.load)
    until_it_is_usable()(remote.load, first)
    for model in others:  # so that the planner knows each model's memory, costs and loading time
        try:
            load(model)
        except ServerUnusable as error:
            log.warning("model left out", model=model, why=str(error))
    try:
        return serve_until_signal(service, name, load, first)
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
    """A model of a server; `change_s` is the mean of the seconds of the last changes to it, 0 before the first."""

    server: ProbedServer
    prompt_format: RequestTokens
    settings: Settings
    engine: RemoteEngine | None = None
    change_s: float = 0.0
    costs: LearnedCosts = field(init=False)

    def __post_init__(self) -> None:
        self.costs = LearnedCosts(self._new_windows)

    def _new_windows(self) -> list[StepWindow]:
        engine = self.engine
        return [] if engine is None else engine.watch.samples.take()

    @property
    def memory(self) -> KvMemory:
        """The memory of its KV cache, counted in tokens as if a token took one byte."""
        theta = self.server.capacity_tokens or _assumed_capacity_tokens(self.server, self.settings)
        return KvMemory(theta, 1, True, self.server.capabilities.block_tokens, self.server.max_rows)

    def make_engine(self) -> RemoteEngine:
        """Closes the last engine and returns a new one."""
        self.close()
        # `change_s` is added, because a server that dropped an idle model loads it again before the first token
        silent_s = self.settings.stall_s / 2 + self.change_s
        self.engine = RemoteEngine(self.server, self.prompt_format.detokenizer, silent_s)
        return self.engine

    def close(self) -> None:
        """Closes the model's engine, if it has one."""
        engine, self.engine = self.engine, None
        if engine is not None:
            engine.close()


class RemoteModels:
    """The models of one server, which serves one of them at a time."""

    def __init__(
        self,
        service: CeleryService,
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
        self._settings, self._heartbeat = service.settings, heartbeat_of(name, service.database_url)
        self._logged_fault: str | None = None

    def load(self, model: str) -> ServedModel:
        """Lets the server load a model, and measures how long that takes; raises ServerUnusable."""
        self.close()
        try:
            known = in_a_thread_that_ends(partial(self._load, model), self._heartbeat)
        except Exception:
            self._known.pop(model, None)  # so that the planner does not order this model again
            raise
        server, several = known.server, len(self._known) > 1
        name = model or self._settings.model_name or server.client_name
        facts = WorkerFacts(
            name=self._name,
            model=name,
            device=f"{server.kind} {server.url}",
            memory=known.memory,
            lacks=server.capabilities.lacks,
            adapters=() if several else server.adapters,
            prefix_cache=server.capabilities.prefix_cache,
            loadable={each: self._loadable(one) for each, one in self._known.items()} if several else {},
            fingerprints=server_fingerprints(name, server, known.prompt_format),
        )
        return ServedModel(known.make_engine, known.prompt_format, facts, partial(self._report, known))

    def close(self) -> None:
        """Closes the engine of the model in service."""
        for one in self._known.values():
            one.close()

    def _load(self, model: str) -> RemoteModel:
        settings = self._settings
        key, directory = settings.engine_key_text, self._models.get(model)
        if directory is None:  # the only model of the server
            if model not in self._known:
                server = connect(self._url, self._kind, key, settings.model_name, *self._bounds)
                source = tokenizer_source(server, settings.chosen_model)
                self._known[model] = RemoteModel(server, load_request_tokens(source, key), settings)
            return self._known[model]
        on_demand = self._on_demand = self._on_demand or find_server(self._url, self._kind, key)
        was_loaded = model in on_demand.loaded()
        seconds = on_demand.change_s(model, directory)
        log.info("model loaded", model=model, seconds=round(seconds, 2), already=was_loaded)
        if model not in self._known:
            address = on_demand.address(model)
            named = model if address == on_demand.url else None  # an address of its own has no other model
            server = connect(address, self._kind, key, named, *self._bounds, directory)
            self._known[model] = RemoteModel(server, load_request_tokens(directory, key), settings)
        known = self._known[model]
        if not was_loaded:
            known.change_s = mean_change_s(known.change_s, seconds)
        return known

    def _loadable(self, model: RemoteModel) -> Loadable:
        """Returns a loadable model as the planner sees it; a model that was never loaded takes as long as others."""
        measured = [one.change_s for one in self._known.values() if one.change_s]
        change_s = model.change_s or (sum(measured) / len(measured) if measured else 0.0)
        learned = model.costs.curves(monotonic())
        return Loadable(
            max(self._settings.heartbeat_s, change_s), model.memory, (learned and learned.curves) or DEFAULT_CURVES
        )

    def _report(self, model: RemoteModel) -> WorkerReport:
        curves = model.costs.curves(monotonic())
        if model.engine is None:
            return WorkerReport(fault="its engine is made anew", curves=curves)
        report = model.engine.watch.report
        if report.fault != self._logged_fault:
            self._logged_fault = report.fault
            log.warning("engine set aside" if report.fault else "engine usable", why=report.fault, url=self._url)
        return replace(report, curves=curves)


def _assumed_capacity_tokens(server: ProbedServer, settings: Settings) -> int:
    longest = settings.assumed_prompt_tokens + settings.assumed_output_tokens
    return (server.max_rows or ASSUMED_ROWS) * min(longest, server.max_positions or longest)


def _log_that_it_is_unusable(tried: RetryCallState) -> None:
    log.warning("engine not usable yet", error=str(tried.outcome and tried.outcome.exception()))
