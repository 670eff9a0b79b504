"""A GPU worker's process: loads the model, announces itself, then serves batches from its own queue until a signal."""

import os
import signal
import socket
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import Any, TypeVar

import structlog
import torch
from celery import signals

from celery_config import gpu_queue
from inference.local.engine import Engine
from inference.local.engine_profile import QUICK, measure
from inference.local.kv_budget import kv_budget_bytes, require_a_row
from inference.local.model_loading import LoadedModel, load_model
from inference.prompt_format import load_prompt_format
from learning.estimators.cost_curves import fit_curves
from models.leases import WorkerRegistration
from models.session import make_engine
from tasks import logs
from tasks.app import app, database_url, redis_url, settings
from tasks.messages import Messages
from tasks.pulse import Pulse
from tasks.serving.batch_runner import BatchRunner
from tasks.serving.lease_heartbeat import LeaseTerms

# Batches in the process at once, each with a thread of Celery's that waits for it. Continuous policies may make every
# row a batch of its own, so it must exceed the rows that fit; a waiting thread costs almost nothing. Not tuned.
MOST_BATCHES = 256
# How long the rows of a stopping worker may run on; those that still run then go back to the queue with their tokens,
# and only their prefill is repeated. Longer delays a restart. Not tuned.
DRAIN_S = 8.0
# Longest that a starting worker measures its own prefills and decode steps; longer delays its first batch, and the
# serving time estimator replaces these curves once batches were served. Not tuned.
PROFILE_WITHIN_S = 5.0
# Fewest measured batches from which curves with four coefficients each are fitted; where fewer fit into the memory,
# the curves would say next to nothing.
FEWEST_MEASURED = 3

T = TypeVar("T")

log = structlog.get_logger()


def run_worker(name: str, device: str, kv_budget: str) -> int:
    """Serve until SIGTERM or SIGINT; returns the process's exit status."""
    logs.configure(settings.log_level)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # until Celery takes over, so that the worker deregisters
    structlog.contextvars.bind_contextvars(worker=name)
    if settings.torch_threads:
        torch.set_num_threads(settings.torch_threads)
    if device == "auto":
        device = "cuda:0" if torch.cuda.is_available() else "cpu"
    loaded, budget_bytes, curves = _in_a_thread_that_ends(partial(_load_and_measure, device, kv_budget))
    runner = BatchRunner(
        make_engine(database_url, pool_size=8, name=f"magnus worker {name}"),
        lambda: Engine(loaded, budget_bytes),
        load_prompt_format(settings.model),
        WorkerRegistration(
            name=name,
            model=settings.model_name or loaded.name,
            device=device,
            theta_bytes=budget_bytes,
            delta_bytes=loaded.delta_bytes,
            curves=curves,
        ),
        LeaseTerms(settings.lease_s, settings.heartbeat_s, settings.stall_s, settings.max_attempts),
        kick_planner=Messages(app, redis_url).kick_planner,
        on_broken=_exit_at_once,
    )
    runner.start()
    Pulse(lambda: runner.works).start()
    try:
        log.info("ready", model=loaded.name, device=device, kv_budget_bytes=budget_bytes)
        return _consume(name, runner)
    finally:
        runner.stop()


def _in_a_thread_that_ends(compute: Callable[[], T]) -> T:
    """What `compute` returns, computed where it leaves no OpenMP threads behind.

    Each thread that runs torch's parallel loops keeps a team of OpenMP threads for as long as it lives. If this main
    thread had one beside the engine's, libgomp would count more threads than cores and let those that wait at a barrier
    sleep instead of spin: smollm2 then generates 143 tokens a second where it generates 195 (36 rows, 2 cores).
    """
    with ThreadPoolExecutor(1, thread_name_prefix="load") as pool:
        return pool.submit(compute).result()


def _load_and_measure(device: str, kv_budget: str) -> tuple[LoadedModel, int, dict[str, Any] | None]:
    """The model, Θ in bytes, and the measured curves."""
    loaded = load_model(settings.model, device, settings.dtype, settings.quantize)
    budget_bytes = kv_budget_bytes(kv_budget, loaded.device)
    require_a_row(budget_bytes, loaded.delta_bytes)
    return loaded, budget_bytes, _measured_curves(loaded, budget_bytes)


def _measured_curves(loaded: LoadedModel, budget_bytes: int) -> dict[str, Any] | None:
    """Rough curves until batches were served or `magnus profile` stored better ones; None if too little fits."""
    measured = measure(loaded, budget_bytes, QUICK, PROFILE_WITHIN_S)
    if len(measured.prefills) < FEWEST_MEASURED:
        return None
    return asdict(fit_curves(measured.prefills, measured.decode_steps)) | {"quick": True}


def _exit_at_once(reason: str) -> None:
    """End the process without waiting for its threads: the engine's may never return. The supervisor starts another."""
    os._exit(1)


def _consume(name: str, runner: BatchRunner) -> int:
    """Run Celery's worker on this process's main thread; returns its exit status."""

    @app.task(name="tasks.serve")  # type: ignore[untyped-decorator]  # celery is untyped
    def serve(batch_id: int) -> None:
        runner.serve(batch_id)

    def drain(**_: Any) -> None:
        runner.drain(DRAIN_S)

    signals.worker_shutting_down.connect(drain)
    worker = app.Worker(
        hostname=f"{name}@{socket.gethostname()}",
        queues=gpu_queue(name),
        pool="threads",
        concurrency=MOST_BATCHES,
        without_gossip=True,
        without_mingle=True,
    )
    worker.start()
    return worker.exitcode or 0
