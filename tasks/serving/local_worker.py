"""A GPU worker's process: loads a model, measures it, serves batches on our own engine; changes to another model."""

import gc
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic, perf_counter

import structlog
import torch

from inference.accelerator import chosen_device, release_unused
from inference.local.cost_counters import StepLog
from inference.local.engine import Engine
from inference.local.engine_profile import QUICK, measure, tolerated_slowdown, worthwhile_threads
from inference.local.kv.kv_budget import GPU_SHARE, kv_budget_bytes, require_a_row
from inference.local.kv.kv_cache import BLOCK_TOKENS
from inference.local.loading.model_loading import LoadedModel, load_model
from inference.local.prefix_sharing import shares_prefixes
from inference.local.row_probe import RowProbe
from inference.local.thread_trials import ThreadTrials
from inference.local.tokens.guessed_tokens import Guessing
from inference.prompt_format import load_prompt_format
from learning.cost_curves import DEFAULT_CURVES, fit_curves
from learning.length_probe import LengthProbe
from models.leasing.leases import WorkerOffer
from models.leasing.worker_registration import WorkerRegistration
from scheduling.costs import ProfiledCurves, ServingCurves
from scheduling.kv_memory import KvMemory
from scheduling.policy import Loadable
from settings import VERSION
from tasks.app import settings
from tasks.serving.batches.batch_job import take_any_format
from tasks.serving.model_in_service import ServedModel, mean_change_s
from tasks.serving.serving_costs import LearnedCosts, window_of_sums
from tasks.serving.worker_process import heartbeat_of, in_a_thread_that_ends, prepare_process, serve_until_signal

# Longest time for which a starting worker measures its prefills and decode steps; longer delays its first batch, and
# learned curves replace these within seconds of traffic. Not tuned.
PROFILE_WITHIN_S = 5.0
# Fewest measured batches to fit curves with four coefficients each; with fewer, because memory is small, the curves
# would be meaningless.
FEWEST_MEASURED = 3

log = structlog.get_logger()


def run_worker(name: str, device: str, kv_budget: str, models: Mapping[str, str]) -> int:
    """Serve these models, each a directory or hub id by name, from the first, until a signal; returns the status."""
    prepare_process(name)
    device = chosen_device(device)
    if settings.torch_threads:
        torch.set_num_threads(settings.torch_threads)
    first, *others = models
    local = LocalModels(name, device, kv_budget, models)
    for model in others:  # so that the planner knows each model's memory, costs and loading time
        local.load(model)
    return serve_until_signal(name, local.load, first)


@dataclass(slots=True)
class MeasuredModel:
    """The facts that are kept of a model while another one is loaded; `change_s` is the mean of its last loads."""

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
    """Loads models one at a time: the weights of the last one are dropped before.

    Weights are read from their files again. The system keeps these in its page cache as far as memory allows, so that
    no setting has to bound a cache of our own, and GPUs and CPUs are treated alike.
    """

    def __init__(self, name: str, device: str, kv_budget: str, models: Mapping[str, str]) -> None:
        """Loads nothing yet; `models` has directories or hub ids by name."""
        self._name, self._device, self._kv_budget = name, device, kv_budget
        self._models, self._known = dict(models), dict[str, MeasuredModel]()
        self._heartbeat = heartbeat_of(name)

    def load(self, model: str) -> ServedModel:
        """Load a model and measure it the first time; nothing may keep a reference to the model before it."""
        began = perf_counter()
        gc.unfreeze()  # the first model's engine and threads refer to each other and were frozen at the start
        gc.collect()
        release_unused()
        try:
            loaded, known = in_a_thread_that_ends(partial(self._load, model), self._heartbeat)
        except Exception:
            self._known.pop(model, None)  # so that the planner does not order it again
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
        return self._served(model, loaded, known)

    def _guesses(self) -> tuple[int, int]:
        """Returns the guessed tokens of all models and the right guesses, since the process started."""
        known = [one.guessing for one in self._known.values()]
        return sum(one.made for one in known), sum(one.right for one in known)

    def _load(self, model: str) -> tuple[LoadedModel, MeasuredModel]:
        adapters = None if settings.adapters is None else str(settings.adapters)
        loaded = load_model(self._models[model], self._device, settings.dtype, settings.quantize, adapters)
        if settings.generation_config == "none":
            loaded = replace(loaded, suppressed_ids=())
        whole_bytes = kv_budget_bytes(self._kv_budget, loaded.device, loaded.longest_row_bytes)
        budget_bytes, most_rows = loaded.layout.divided(whole_bytes)
        require_a_row(budget_bytes, loaded.delta_bytes)
        # policies use blocks only for continuous batching; static batches are rectangles
        block_tokens = BLOCK_TOKENS if loaded.in_blocks else 1
        windows = loaded.layout.windowed(block_tokens)
        memory = KvMemory(budget_bytes, loaded.delta_bytes, loaded.in_blocks, block_tokens, most_rows, *windows)
        known = self._known.get(model)
        if known is None:
            known = self._known[model] = _measured(loaded, memory)
        known.memory = memory
        if known.thread_trials is not None:
            torch.set_num_threads(known.thread_trials.chosen)
        return loaded, known

    def _served(self, model: str, loaded: LoadedModel, known: MeasuredModel) -> ServedModel:
        memory = known.memory
        several = len(self._models) > 1
        announcement = WorkerRegistration(
            name=self._name,
            model=model,
            device=self._device,
            theta_bytes=memory.theta_bytes,
            delta_bytes=memory.delta_bytes,
            curves=None if known.curves is None else ProfiledCurves(known.curves, quick=True),
            paged=memory.paged,
            block_tokens=memory.block_tokens,
            windowed_bytes=memory.windowed_bytes,
            window_tokens=memory.window_tokens,
            lacks=() if loaded.format_masks else ("response_format",),
            adapters=tuple(sorted(loaded.adapters.names)),
            prefix_cache=settings.prefix_cache and shares_prefixes(loaded),
            version=VERSION,
            loadable={name: one.loadable for name, one in self._known.items()} if several else {},
        )
        probe = RowProbe(loaded.decoder, known.probe) if loaded.fused else None
        # as published, batches are planned for Θ, and the rest of the memory is for predictions that were too short
        published = settings.magnus == "published"
        engine_bytes = int(memory.theta_bytes / GPU_SHARE) if published else memory.theta_bytes
        return ServedModel(
            lambda: Engine(
                loaded,
                engine_bytes,
                step_log=known.steps,
                prefill_tokens=settings.prefill_tokens,
                thread_trials=known.thread_trials,
                probe=probe,
                prefix_cache=settings.prefix_cache,
                guessing=known.guessing,
            ),
            load_prompt_format(self._models[model]),
            announcement,
            offer=lambda: WorkerOffer(
                memory.max_rows,
                None,
                known.costs.curves(monotonic()),
                probe.lengths if probe else {},
                self._guesses(),
                known.steps.shared_tokens,
            ),
            prepare_format=loaded.format_masks.prepare if loaded.format_masks else take_any_format,
        )


def _measured(loaded: LoadedModel, memory: KvMemory) -> MeasuredModel:
    thread_trials = None
    if loaded.device.type == "cpu":
        most = torch.get_num_threads()
        threads = worthwhile_threads(loaded, memory.theta_bytes, most)
        torch.set_num_threads(threads)
        log.info("number of threads chosen", threads=threads)
        thread_trials = ThreadTrials(threads, most, tolerated_slowdown(loaded))
    curves, steps = _measured_curves(loaded, memory.theta_bytes), StepLog()
    costs = LearnedCosts(lambda now: [window_of_sums(sums, now) for sums in steps.take()], curves)
    return MeasuredModel(memory, curves, thread_trials, steps, costs, LengthProbe(), Guessing(settings.guess_tokens))


def _measured_curves(loaded: LoadedModel, budget_bytes: int) -> ServingCurves | None:
    """Returns rough curves, which learned steps or `magnus profile` replace, or None if too few batches fit."""
    measured = measure(loaded, budget_bytes, QUICK, PROFILE_WITHIN_S)
    if len(measured.prefills) < FEWEST_MEASURED:
        return None
    return fit_curves(measured.prefills, measured.decode_steps)
