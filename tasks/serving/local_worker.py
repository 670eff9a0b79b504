"""A GPU worker's process: loads the model, measures it, then serves batches on our own engine."""

from dataclasses import replace
from functools import partial
from time import monotonic
from typing import NamedTuple

import structlog
import torch

from inference.local.cost_counters import StepLog
from inference.local.engine import Engine
from inference.local.engine_profile import QUICK, measure, tolerated_slowdown, worthwhile_threads
from inference.local.guessed_tokens import Guessing
from inference.local.kv.kv_budget import GPU_SHARE, kv_budget_bytes, require_a_row
from inference.local.kv.kv_cache import BLOCK_TOKENS
from inference.local.loading.model_loading import LoadedModel, load_model
from inference.local.prefix_sharing import shares_prefixes
from inference.local.row_probe import RowProbe
from inference.local.thread_trials import ThreadTrials
from inference.prompt_format import load_prompt_format
from learning.cost_curves import fit_curves
from learning.length_probe import LengthProbe
from models.leasing.leases import WorkerOffer
from models.leasing.worker_registration import WorkerRegistration
from scheduling.costs import ProfiledCurves, ServingCurves
from settings import VERSION
from tasks.app import settings
from tasks.serving.batch_job import take_any_format
from tasks.serving.serving_costs import LearnedCosts, window_of_sums
from tasks.serving.worker_process import in_a_thread_that_ends, prepare_process, serve_until_signal

# Longest time for which a starting worker measures its prefills and decode steps; longer delays its first batch, and
# learned curves replace these within seconds of traffic. Not tuned.
PROFILE_WITHIN_S = 5.0
# Fewest measured batches to fit curves with four coefficients each; with fewer, because memory is small, the curves
# would be meaningless.
FEWEST_MEASURED = 3

log = structlog.get_logger()


def run_worker(name: str, device: str, kv_budget: str) -> int:
    """Serve until SIGTERM or SIGINT; returns the process's exit status."""
    prepare_process(name)
    if device == "auto":
        device = "cuda:0" if torch.cuda.is_available() else "cpu"
    loaded, budget_bytes, most_rows, curves, thread_trials = in_a_thread_that_ends(
        partial(_load_and_measure, device, kv_budget)
    )
    announcement = WorkerRegistration(
        name=name,
        model=settings.model_name or loaded.name,
        device=device,
        theta_bytes=budget_bytes,
        delta_bytes=loaded.delta_bytes,
        curves=None if curves is None else ProfiledCurves(curves, quick=True),
        # policies use the next two only for continuous batching; static batches are rectangles
        paged=loaded.fused,
        block_tokens=BLOCK_TOKENS if loaded.fused else 1,
        lacks=() if loaded.format_masks else ("response_format",),
        adapters=tuple(sorted(loaded.adapters.names)),
        prefix_cache=settings.prefix_cache and shares_prefixes(loaded),
        version=VERSION,
    )
    steps = StepLog()
    costs = LearnedCosts(lambda now: [window_of_sums(sums, now) for sums in steps.take()], curves)
    probe = RowProbe(loaded.decoder, LengthProbe()) if loaded.fused else None
    guessing = Guessing(settings.guess_tokens)
    # as published, batches are planned for Θ, and the rest of the memory is for predictions that were too short
    engine_bytes = int(budget_bytes / GPU_SHARE) if settings.magnus == "published" else budget_bytes
    return serve_until_signal(
        lambda: Engine(
            loaded,
            engine_bytes,
            step_log=steps,
            prefill_tokens=settings.prefill_tokens,
            thread_trials=thread_trials,
            probe=probe,
            prefix_cache=settings.prefix_cache,
            guessing=guessing,
        ),
        load_prompt_format(settings.model),
        announcement,
        offer=lambda: WorkerOffer(
            most_rows, None, costs.curves(monotonic()), probe.lengths if probe else {}, (guessing.made, guessing.right)
        ),
        prepare_format=loaded.format_masks.prepare if loaded.format_masks else take_any_format,
    )


class _MeasuredModel(NamedTuple):
    loaded: LoadedModel
    budget_bytes: int  # Θ, without the states of rows
    most_rows: int | None  # that have states; None: any number
    curves: ServingCurves | None
    thread_trials: ThreadTrials | None  # None on a GPU


def _load_and_measure(device: str, kv_budget: str) -> _MeasuredModel:
    if settings.torch_threads:
        torch.set_num_threads(settings.torch_threads)
    adapters = None if settings.adapters is None else str(settings.adapters)
    loaded = load_model(settings.model, device, settings.dtype, settings.quantize, adapters)
    if settings.generation_config == "none":
        loaded = replace(loaded, suppressed_ids=())
    whole_bytes = kv_budget_bytes(kv_budget, loaded.device, loaded.longest_row_bytes)
    budget_bytes, most_rows = loaded.layout.divided(whole_bytes)
    require_a_row(budget_bytes, loaded.delta_bytes)
    thread_trials = None
    if loaded.device.type == "cpu":
        most = torch.get_num_threads()
        threads = worthwhile_threads(loaded, budget_bytes, most)
        torch.set_num_threads(threads)
        log.info("number of threads chosen", threads=threads)
        thread_trials = ThreadTrials(threads, most, tolerated_slowdown(loaded))
    return _MeasuredModel(loaded, budget_bytes, most_rows, _measured_curves(loaded, budget_bytes), thread_trials)


def _measured_curves(loaded: LoadedModel, budget_bytes: int) -> ServingCurves | None:
    """Returns rough curves, which learned steps or `magnus profile` replace; None if too few batches fit."""
    measured = measure(loaded, budget_bytes, QUICK, PROFILE_WITHIN_S)
    if len(measured.prefills) < FEWEST_MEASURED:
        return None
    return fit_curves(measured.prefills, measured.decode_steps)
