"""The part that all workers' processes share: announces the worker, and serves batches until a signal comes."""

import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from threading import Timer
from time import monotonic, sleep
from typing import Any, TypeVar

import structlog
from celery import signals
from sqlalchemy import Engine as Database
from sqlalchemy.exc import SQLAlchemyError

from celery_config import gpu_queue
from models.connections.database_errors import explain
from models.connections.session import in_transaction, make_engine
from models.leasing.worker_registration import keep_alive, other_process
from models.process_identity import has_ended, this_process
from processes import json_logs
from processes.celery.celery_app import CeleryService, celery_service, consume
from processes.celery.messages import Messages
from processes.hosted_process import HostedProcess
from settings import VERSION
from tasks.serving.batches.batch_runner import BatchRunner
from tasks.serving.batches.lease_heartbeat import LeaseTerms
from tasks.serving.batches.served_model import ServedModel
from tasks.serving.model_in_service import LoadModel, ModelInService
from tasks.serving.results.live_tokens import LiveRows, TokenPublisher, ask_listener

# The process has at most this many batches at once, each with a thread of Celery's that waits for it. Continuous
# policies may make every row a batch of its own, so the number must exceed the rows that fit. Waiting threads cost
# almost nothing. Not tuned.
MOST_BATCHES = 256
# Shares of MAGNUS_STOP_S: until the first, rows of a stopping worker run on, and then return to the queue with their
# tokens; by the second, all work has been given back; at the third, the process ends whatever it waits for. Between
# them is time for the step under way, then for Celery, which takes up to a second, and then for the system. Not tuned.
RUNNING_ON_SHARE, LEAVING_SHARE, LAST_SHARE = 0.4, 0.75, 0.95
LOOK_AGAIN_S = 0.5  # seconds between two checks of the heartbeat of the other process; not tuned
# Added to the lease while a name is awaited: a worker without a batch writes a heartbeat only every 1.5 s.
MARGIN_S = 2.0

log = structlog.get_logger()
T = TypeVar("T")


def prepare_process(name: str) -> CeleryService:
    """Returns the service; logs then have the worker's name, and SIGTERM ends the process at once until it serves."""
    service = celery_service()
    settings = service.settings
    json_logs.configure_background(settings.log_level)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    structlog.contextvars.bind_contextvars(worker=name)
    return service


def in_a_thread_that_ends(compute: Callable[[], T], meanwhile: Callable[[], None] = lambda: None) -> T:
    """Returns the result of `compute`, which runs in a thread that leaves no OpenMP threads behind.

    Calls `meanwhile` once a second.

    Each thread that runs torch's parallel loops keeps a team of OpenMP threads for as long as it lives. If the main
    thread had a team beside the engine's, libgomp would count more threads than cores, and threads that wait at a
    barrier would sleep, not spin: smollm2 then generates 143 instead of 195 tokens a second (36 rows, 2 cores).
    """
    with ThreadPoolExecutor(1, thread_name_prefix="load") as pool:
        computed = pool.submit(compute)
        while not wait([computed], timeout=1.0).done:
            meanwhile()
        return computed.result()


def heartbeat_of(name: str, database_url: str) -> Callable[[], None]:
    """Returns a function that writes the worker's heartbeat while the worker loads another model."""
    database = make_engine(database_url, pool_size=1, name=f"magnus worker {name} loads")

    def beat() -> None:
        try:
            in_transaction(database, keep_alive)(name, this_process())
        except SQLAlchemyError as error:
            log.warning("no heartbeat while a model is loaded", error=str(error))

    return beat


class NameTaken(Exception):
    """Another living process serves under this worker's name."""


def await_name(
    database: Database, name: str, instance: str, lease_s: float, pause: Callable[[float], None] = sleep
) -> None:
    """Waits until no living process has the worker's name; raises NameTaken if a process keeps it beyond a lease."""
    give_up_at = monotonic() + lease_s + MARGIN_S
    while True:
        with database.connect() as connection:
            other = other_process(connection, name, instance, lease_s)
        if other is None or has_ended(other):
            return
        if monotonic() > give_up_at:
            raise NameTaken(
                f"the worker {name} of {other} is alive, so that of {instance} does not start: "
                "give each worker a name of its own with --name"
            )
        pause(LOOK_AGAIN_S)


def serve_until_signal(reached: CeleryService, name: str, load: LoadModel, model: str = "") -> int:
    """Loads the model, announces the worker, serves its queue until a signal; returns the exit status.

    The status is EX_CONFIG, 78, if another process has the worker's name: a supervisor should not start it again then.
    """
    settings, database_url, installation = reached.settings, reached.database_url, reached.installation
    instance = this_process()
    database = make_engine(database_url, pool_size=7, name=f"magnus worker {name}", generic_plans=True)
    # A renewal is one statement on few rows by their ids: to plan it each time takes Postgres 0.35 ms instead of 0.06.
    # If a crash of Postgres undoes a renewal, the next heartbeat renews again.
    renewals = make_engine(
        database_url,
        pool_size=1,
        name=f"magnus worker {name} renews",
        autocommit=True,
        generic_plans=True,
        durable=False,
    )
    publisher = TokenPublisher(reached.redis_url, installation.name, lambda *ids, **how: service.decode(*ids, **how))
    live_rows = LiveRows(publisher.put)
    asks = ask_listener(reached.redis_url, installation, live_rows.ask)

    def make_runner(served: ServedModel, on_wanted: Callable[[str], None]) -> BatchRunner:
        return BatchRunner(
            database,
            replace(served, facts=replace(served.facts, instance=instance, version=VERSION)),
            LeaseTerms(settings.lease_s, settings.heartbeat_s, settings.stall_s),
            renewals=renewals,
            kick_planner=Messages(reached.app, reached.redis_url).kick_planner,
            on_broken=_exit_at_once,
            live_rows=live_rows,
            salt_key=installation.secret,
            on_wanted=on_wanted,
        )

    service = ModelInService(model, load, make_runner, _exit_at_once)
    try:
        await_name(database, name, instance, settings.lease_s)
    except NameTaken as error:
        log.critical("worker not started", why=str(error))
        return os.EX_CONFIG
    except SQLAlchemyError as error:  # the database went away since `prepare_process` read it
        json_logs.refuse_to_start(explain(error), settings.log_level)
    process = HostedProcess([publisher, asks, service], works=lambda: service.works)
    process.start()
    try:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # until Celery handles signals
        facts = service.facts
        log.info("ready", model=facts.model, device=facts.device, kv_tokens=facts.memory.capacity_tokens)
        return _consume(reached, name, service)
    finally:
        process.stop()
        if service.late:  # a regular end of Python would wait for the engine's step
            os._exit(0)


def _exit_at_once(reason: str) -> None:
    """Ends the process at once, because the engine's thread may never return; the supervisor starts another process."""
    os._exit(1)


def _end_late() -> None:
    """Ends a process that hangs while stopping, for example on a frozen server; its leases then expire."""
    log.critical("worker given up", why="it has not ended in MAGNUS_STOP_S")
    os._exit(1)


def _consume(reached: CeleryService, name: str, service: ModelInService) -> int:
    """Run Celery's worker on this process's main thread; returns its exit status."""

    stop_s = reached.settings.stop_s

    @reached.app.task(name="tasks.serve")  # type: ignore[untyped-decorator]  # celery is untyped
    def serve(batch_id: int) -> None:
        service.serve(batch_id)

    def drain(**_: Any) -> None:
        service.drain(LEAVING_SHARE * stop_s, RUNNING_ON_SHARE * stop_s)
        last_resort = Timer(LAST_SHARE * stop_s, _end_late)
        last_resort.daemon = True
        last_resort.start()

    signals.worker_shutting_down.connect(drain)
    return consume(reached.app, gpu_queue(name), name, threads=MOST_BATCHES)
