"""A GPU worker's process: loads the model, announces itself, then serves batches from its own queue until a signal."""

import os
import signal
import socket
import sys
from dataclasses import asdict
from typing import Any

import structlog
import torch
from celery import signals
from sqlalchemy.exc import SQLAlchemyError

from celery_config import gpu_queue
from inference.local.engine import Engine
from inference.local.engine_profile import QUICK, measure
from inference.local.kv_budget import kv_budget_bytes
from inference.local.model_loading import LoadedModel, load_model
from inference.prompt_format import load_prompt_format
from learning.estimators.cost_curves import fit_curves
from models.leases import WorkerRegistration
from models.session import make_engine
from tasks import logs
from tasks.app import app, database_url, redis_url, settings
from tasks.messages import Messages
from tasks.serving.batch_runner import BatchRunner
from tasks.serving.lease_heartbeat import LeaseTerms

MOST_BATCHES = 256  # in flight at once: continuous policies let every row be a batch
WIND_DOWN_S = 8.0  # what a stopping worker has left to finish
PROFILE_WITHIN_S = 5.0
FEWEST_MEASURED = 3  # batches, for curves with four coefficients each

log = structlog.get_logger()


def run_worker(name: str, device: str, kv_budget: str) -> int:
    """Serve until SIGTERM or SIGINT; the process's exit status."""
    logs.configure(settings.log_level)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # until Celery takes over, so that goodbye is said
    structlog.contextvars.bind_contextvars(worker=name)
    if settings.torch_threads:
        torch.set_num_threads(settings.torch_threads)
    if device == "auto":
        device = "cuda:0" if torch.cuda.is_available() else "cpu"
    loaded = load_model(settings.model, device, settings.dtype, settings.quantize)
    budget_bytes = kv_budget_bytes(kv_budget, loaded.device)
    messages = Messages(app, redis_url)
    host = BatchRunner(
        make_engine(database_url, pool_size=8, name=f"magnus worker {name}"),
        lambda: Engine(loaded, budget_bytes),
        load_prompt_format(settings.model),
        WorkerRegistration(
            name=name,
            model=settings.model_name or loaded.name,
            device=device,
            theta_bytes=budget_bytes,
            delta_bytes=loaded.delta_bytes,
            curves=_measured(loaded, budget_bytes),
        ),
        LeaseTerms(settings.lease_s, settings.heartbeat_s, settings.stall_s, settings.max_attempts),
        kick_planner=messages.kick_planner,
        on_broken=lambda why: _abort(host, why),
    )
    log.info("ready", model=loaded.name, device=device, kv_budget_bytes=budget_bytes)
    try:
        return _consume(name, host)
    finally:
        host.stop()


def _consume(name: str, host: BatchRunner) -> int:
    """Run Celery's worker on this process's main thread."""

    @app.task(name="tasks.serve")  # type: ignore[untyped-decorator]  # celery is untyped
    def serve(batch_id: int) -> None:
        host.serve(batch_id)

    def wind_down(**_: Any) -> None:
        host.wind_down(WIND_DOWN_S)

    signals.worker_shutting_down.connect(wind_down)
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


def _measured(loaded: LoadedModel, budget_bytes: int) -> dict[str, Any] | None:
    """Rough curves until batches were served or `magnus profile` stored better ones; None if hardly anything fits."""
    measured = measure(loaded, budget_bytes, QUICK, PROFILE_WITHIN_S)
    if len(measured.prefills) < FEWEST_MEASURED:
        return None
    return asdict(fit_curves(measured.prefills, measured.decode_steps)) | {"quick": True}


def _abort(host: BatchRunner, why: str) -> None:
    """End the process at once: its engine cannot be trusted any more. The supervisor starts another."""
    log.critical("worker given up", why=why)
    try:
        host.say_goodbye(failed=True)
    except SQLAlchemyError as error:
        log.error("no goodbye said", error=str(error))
    os._exit(1)
