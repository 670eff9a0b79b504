"""A worker's process with our own engine: loads a model, measures it, serves batches, changes to another model."""

import gc
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic, perf_counter

import structlog
import torch

from inference.accelerator import chosen_device, release_unused
from inference.local.costs.cost_counters import StepLog
from inference.local.costs.thread_trials import ThreadTrials
from inference.local.engine import Engine
from inference.local.engine_options import EngineOptions
from inference.local.engine_profile import QUICK, measure, tolerated_slowdown, worthwhile_threads
from inference.local.guessed_tokens import Guessing
from inference.local.kv.kv_budget import GPU_SHARE, kv_budget_bytes, require_a_row
from inference.local.kv.kv_cache import BLOCK_TOKENS
from inference.local.loading.model_loading import LoadedModel, load_model
from inference.local.prefix_sharing import shares_prefixes
from inference.local.row_probe import RowProbe
from inference.local.tokens.repetition import LoopStops
from inference.model_directory.model_fingerprint import fingerprints
from inference.prompts.prompt_format import load_prompt_format
from learning.estimators.cost_curves import DEFAULT_CURVES, fit_curves
from learning.length_probe import LengthProbe
from processes.celery.celery_app import CeleryService
from scheduling.costs import ProfiledCurves, ServingCurves
from scheduling.kv_memory import KvMemory
from scheduling.worker_facts import Loadable, WorkerFacts, WorkerReport
from tasks.serving.batches.batch_job import take_any_format
from tasks.serving.batches.served_model import ServedModel
from tasks.serving.batches.serving_costs import LearnedCosts
from tasks.serving.model_in_service import mean_change_s
from tasks.serving.worker_process import heartbeat_of, in_a_thread_that_ends, prepare_process, serve_until_signal

# A starting worker measures its prefills and decode steps for at most this long. A longer time delays its first batch,
# and learned curves replace the measured ones within seconds of traffic. Not tuned.
PROFILE_WITHIN_S = 5.0
# A starting worker lets a device record graphs for at most this long; later steps record what is missing. Not tuned.
RECORD_WITHIN_S = 5.0
# Curves with four coefficients each are fitted to at least this many measured batches. With fewer, as on a device with
# little memory, the curves would be meaningless.
FEWEST_MEASURED = 3

log = structlog.get_logger()


def run_worker(name: str, device: str, kv_budget: str, models: Mapping[str, str]) -> int:
    """Serves these models (name to directory or hub id) from the first on, until a signal; returns the exit status."""
    service = prepare_process(name)
    settings, device = service.settings, chosen_device(device)
    if settings.torch_threads:
        torch.set_num_threads(settings.torch_threads)
    first, *others = models
    local = LocalModels(service, name, device, kv_budget, models)
    for model in others:  # so that the planner knows each model's memory, costs and loading time
        local.load(model)
    return serve_until_signal(service, name, local.load, first)


@dataclass(slots=True)
class MeasuredModel:
    """What is kept of a model while another one is loaded; `change_s` is the mean of the seconds of its last loads."""

    memory: KvMemory
    curves: ServingCurves | None
    thread_trials: ThreadTrials | None  # None on a GPU
    steps: StepLog
    costs: LearnedCosts
    probe: LengthProbe
    guessing: Guessing
    change_s: float = 0.0

    @property
    def loadable(self) -> Loadable:
        """The model as the planner sees it while another one is loaded."""
        learned = self.costs.curves(monotonic())
        return Loadable(self.change_s, self.memory, (learned and learned.curves) or self.curves or DEFAULT_CURVES)


class LocalModels:
    """Loads models one at a time: the weights of the last model are dropped before the next one is loaded.

    Each load reads the weights from their files. The system keeps the files in its page cache as far as memory allows,
    so that no setting has to bound a cache of our own, and GPUs and CPUs are treated alike.
    """

    def __init__(
        self, service: CeleryService, name: str, device: str, kv_budget: str, models: Mapping[str, str]
    ) -> None:
        """Loads nothing yet; `models` has directories or hub ids by name."""
        self._name, self._device, self._kv_budget = name, device, kv_budget
        self._models, self._known = dict(models), dict[str, MeasuredModel]()
        self._loop_stops = LoopStops()
        self._settings, self._heartbeat = service.settings, heartbeat_of(name, service.database_url)

    def load(self, model: str) -> ServedModel:
        """Loads a model, and measures it at its first load; nothing may keep a reference to the model before it."""
        began = perf_counter()
        gc.unfreeze()  # the first model's engine and threads refer to each other, and were frozen at the start
        gc.collect()
        release_unused()
        try:
            loaded, known = in_a_thread_that_ends(partial(self._load, model), self._heartbeat)
        except Exception:
            self._known.pop(model, None)  # so that the planner does not order this model again
            raise
        seconds = perf_counter() - began
        known.change_s = mean_change_s(known.change_s, seconds)
        log.info(
            "model loaded",
            model=model,
            seconds=round(seconds, 2),
            graphs=loaded.repeats_passes,
            slowed_by=loaded.slowed_by or None,
        )
        if loaded.unchecked:
            log.warning(
                "rows beyond some lengths were not compared with the model's own forward pass: too dear on this device",
                model=model,
                tokens=loaded.unchecked,
            )
        return self._served(model, loaded, known)

    def _load(self, model: str) -> tuple[LoadedModel, MeasuredModel]:
        settings = self._settings
        adapters = None if settings.adapters is None else str(settings.adapters)
        loaded = load_model(self._models[model], self._device, settings.dtype, settings.quantize, adapters)
        if settings.generation_config == "none":
            loaded = replace(loaded, suppressed_ids=())
        whole_bytes = kv_budget_bytes(self._kv_budget, loaded.device, loaded.longest_row_bytes)
        budget_bytes, most_rows = loaded.layout.divided(whole_bytes)
        require_a_row(budget_bytes, loaded.delta_bytes)
        # policies count blocks only for continuous batching, because static batches are rectangles
        block_tokens = BLOCK_TOKENS if loaded.in_blocks else 1
        windows = loaded.layout.windowed(block_tokens)
        memory = KvMemory(budget_bytes, loaded.delta_bytes, loaded.in_blocks, block_tokens, most_rows, *windows)
        known = self._known.get(model)
        if known is None:
            known = self._known[model] = _measured(loaded, memory, settings.parameters.guess_tokens)
        known.memory = memory
        if known.thread_trials is not None:
            torch.set_num_threads(known.thread_trials.chosen)
        return loaded, known

    def _served(self, model: str, loaded: LoadedModel, known: MeasuredModel) -> ServedModel:
        settings, memory = self._settings, known.memory
        several = len(self._models) > 1
        facts = WorkerFacts(
            name=self._name,
            model=model,
            device=self._device,
            memory=memory,
            curves=None if known.curves is None else ProfiledCurves(known.curves, quick=True),
            lacks=() if loaded.format_masks else ("response_format",),
            adapters=tuple(sorted(loaded.adapters.names)),
            prefix_cache=settings.parameters.prefix_cache and shares_prefixes(loaded),
            loadable={name: one.loadable for name, one in self._known.items()} if several else {},
            fingerprints=fingerprints(
                model,
                self._models[model],
                {adapter: Path(settings.adapters or "", adapter) for adapter in loaded.adapters.names},
            ),
        )
        probe = RowProbe(loaded.decoder, known.probe) if loaded.fused else None
        # as published, batches are planned for Θ; the rest of the memory is for rows that outgrow their predictions
        published = settings.parameters.magnus == "published"
        engine_bytes = int(memory.theta_bytes / GPU_SHARE) if published else memory.theta_bytes
        options = EngineOptions(
            step_log=known.steps,
            prefill_tokens=settings.parameters.prefill_tokens,
            thread_trials=known.thread_trials,
            probe=probe,
            prefix_cache=settings.parameters.prefix_cache,
            guessing=known.guessing,
            loop_stops=self._loop_stops if settings.parameters.loops == "stop" else None,
        )
        return ServedModel(
            lambda: _new_engine(loaded, engine_bytes, options),
            load_prompt_format(self._models[model]),
            facts,
            report=lambda: WorkerReport(
                curves=known.costs.curves(monotonic()),
                row_lengths=probe.lengths if probe else {},
                shared_tokens=known.steps.shared_tokens,
                guessed_tokens=sum(one.guessing.made for one in self._known.values()),
                right_guesses=sum(one.guessing.right for one in self._known.values()),
                stopped_loops=self._loop_stops.rows,
                saved_tokens=self._loop_stops.saved_tokens,
            ),
            prepare_format=loaded.format_masks.prepare if loaded.format_masks else take_any_format,
        )


def _new_engine(loaded: LoadedModel, kv_budget_bytes: int, options: EngineOptions) -> Engine:
    engine, began = Engine(loaded, kv_budget_bytes, options), perf_counter()
    if recorded := engine.record_graphs(RECORD_WITHIN_S):
        log.info("graphs recorded", rows=recorded, seconds=round(perf_counter() - began, 2))
    return engine


def _measured(loaded: LoadedModel, memory: KvMemory, guess_tokens: int) -> MeasuredModel:
    thread_trials = None
    if loaded.device.type == "cpu":
        most = torch.get_num_threads()
        threads = worthwhile_threads(loaded, memory.theta_bytes, most)
        torch.set_num_threads(threads)
        log.info("number of threads chosen", threads=threads)
        thread_trials = ThreadTrials(threads, most, tolerated_slowdown(loaded))
    curves, steps = _measured_curves(loaded, memory.theta_bytes), StepLog()
    return MeasuredModel(
        memory, curves, thread_trials, steps, LearnedCosts(steps.take, curves), LengthProbe(), Guessing(guess_tokens)
    )


def _measured_curves(loaded: LoadedModel, budget_bytes: int) -> ServingCurves | None:
    """Returns rough curves, or None if too few batches fit; learned steps or `magnus profile` replace them later."""
    measured = measure(loaded, budget_bytes, QUICK, PROFILE_WITHIN_S)
    if len(measured.prefills) < FEWEST_MEASURED:
        return None
    return fit_curves(measured.prefills, measured.decode_steps)
