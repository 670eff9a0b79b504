"""Shared by all workers' processes: announces the worker, and serves batches until a signal comes."""

import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from threading import Timer
from typing import Any, TypeVar

import structlog
from celery import signals
from sqlalchemy.exc import SQLAlchemyError

from celery_config import gpu_queue
from models.connections.database_errors import explain
from models.leasing.worker_registration import keep_alive
from models.process_identity import this_process
from models.session import make_engine
from processes import json_logs
from processes.hosted_process import HostedProcess
from tasks.app import app, database_url, installation, redis_url, settings
from tasks.celery_process import consume
from tasks.messages import Messages
from tasks.serving.batches.batch_runner import BatchRunner
from tasks.serving.batches.lease_heartbeat import LeaseTerms
from tasks.serving.model_in_service import LoadModel, ModelInService, ServedModel
from tasks.serving.results.live_tokens import LiveRows, TokenPublisher, ask_listener
from tasks.serving.worker_name import NameTaken, await_name

# Batches in the process at once, each with a thread of Celery's that waits for it. Continuous policies may make every
# row a batch of its own, so it must exceed the rows that fit; a waiting thread costs almost nothing. Not tuned.
MOST_BATCHES = 256
# The shares of MAGNUS_STOP_S in which rows of a stopping worker may still run, in which all work has been given back,
# and after which the process ends whatever it waits for. Rows that run at the first return to the queue with their
# tokens, and only their prefill is repeated. In between is time for the step under way, then for Celery, which takes up
# to a second, and at the end for the system to remove the process. Not tuned.
RUNNING_ON_SHARE, LEAVING_SHARE, LAST_SHARE = 0.4, 0.75, 0.95

log = structlog.get_logger()
T = TypeVar("T")


def prepare_process(name: str) -> None:
    """Configure logs with the worker's name, and let SIGTERM end the process at once, since it has no work yet."""
    json_logs.configure_background(settings.log_level)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    structlog.contextvars.bind_contextvars(worker=name)


def in_a_thread_that_ends(compute: Callable[[], T], meanwhile: Callable[[], None] = lambda: None) -> T:
    """Returns what `compute` returns, computed in a thread that leaves no OpenMP threads behind.

    Calls `meanwhile` once a second.

    Each thread that runs torch's parallel loops keeps a team of OpenMP threads for as long as it lives. If the main
    thread had one beside the engine's, libgomp would count more threads than cores and let those that wait at a barrier
    sleep instead of spin: smollm2 then generates 143 tokens a second where it generates 195 (36 rows, 2 cores).
    """
    with ThreadPoolExecutor(1, thread_name_prefix="load") as pool:
        computed = pool.submit(compute)
        while not wait([computed], timeout=1.0).done:
            meanwhile()
        return computed.result()


def heartbeat_of(name: str) -> Callable[[], None]:
    """Returns a function that writes the worker's heartbeat while it loads another model and can do nothing else."""
    database = make_engine(database_url, pool_size=1, name=f"magnus worker {name} loads")

    def beat() -> None:
        try:
            with database.begin() as connection:
                keep_alive(connection, name, this_process())
        except SQLAlchemyError as error:
            log.warning("no heartbeat while a model is loaded", error=str(error))

    return beat


def serve_until_signal(name: str, load: LoadModel, model: str = "") -> int:
    """Load the model, announce the worker, serve its queue until a signal; returns the exit status.

    That is EX_CONFIG, 78, if another process has its name: a supervisor should not start it again then.
    """
    instance = this_process()
    database = make_engine(database_url, pool_size=7, name=f"magnus worker {name}", generic_plans=True)
    # Each is one statement on few rows by their ids: planning it each time takes Postgres 0.35 ms instead of 0.06. If a
    # crash of Postgres undoes one, the next heartbeat renews again.
    renewals = make_engine(
        database_url,
        pool_size=1,
        name=f"magnus worker {name} renews",
        autocommit=True,
        generic_plans=True,
        durable=False,
    )
    publisher = TokenPublisher(redis_url, installation.name, lambda *ids, **how: service.decode(*ids, **how))
    live_rows = LiveRows(publisher.put)
    asks = ask_listener(redis_url, installation, live_rows.ask)

    def make_runner(served: ServedModel, on_wanted: Callable[[str], None]) -> BatchRunner:
        return BatchRunner(
            database,
            served.make_engine,
            served.prompt_format,
            replace(served.announcement, instance=instance),
            LeaseTerms(settings.lease_s, settings.heartbeat_s, settings.stall_s, settings.max_attempts),
            renewals=renewals,
            kick_planner=Messages(app, redis_url).kick_planner,
            on_broken=_exit_at_once,
            live_rows=live_rows,
            offer=served.offer,
            salt_key=installation.secret,
            prepare_format=served.prepare_format,
            on_wanted=on_wanted,
        )

    service = ModelInService(model, load, make_runner, _exit_at_once)
    try:
        await_name(database, name, instance, settings.lease_s)
    except NameTaken as error:
        log.critical("worker not started", why=str(error))
        return os.EX_CONFIG
    except SQLAlchemyError as error:  # the database went away since `tasks.app` read it
        json_logs.refuse_to_start(explain(error), settings.log_level)
    process = HostedProcess([publisher, asks, service], works=lambda: service.works)
    process.start()
    try:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # until Celery handles signals
        announced = service.announcement
        log.info(
            "ready",
            model=announced.model,
            device=announced.device,
            kv_tokens=announced.theta_bytes // announced.delta_bytes,
        )
        return _consume(name, service)
    finally:
        process.stop()
        if service.late:  # Python's end would wait for the engine's step
            os._exit(0)


def _exit_at_once(reason: str) -> None:
    """End the process at once: the engine's thread may never return. The supervisor starts another process."""
    os._exit(1)


def _end_late() -> None:
    """End a process that hangs while stopping, for example on a frozen server; its leases then expire."""
    log.critical("worker given up", why="it has not ended in MAGNUS_STOP_S")
    os._exit(1)


def _consume(name: str, service: ModelInService) -> int:
    """Run Celery's worker on this process's main thread; returns its exit status."""

    @app.task(name="tasks.serve")  # type: ignore[untyped-decorator]  # celery is untyped
    def serve(batch_id: int) -> None:
        service.serve(batch_id)

    def drain(**_: Any) -> None:
        service.drain(LEAVING_SHARE * settings.stop_s, RUNNING_ON_SHARE * settings.stop_s)
        last_resort = Timer(LAST_SHARE * settings.stop_s, _end_late)
        last_resort.daemon = True
        last_resort.start()

    signals.worker_shutting_down.connect(drain)
    return consume(app, gpu_queue(name), name, threads=MOST_BATCHES)
