"""Keeps a worker registered and its leases alive, reads cancels and lost leases, and checks the engine."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from threading import Event, Lock, Thread
from time import time

import structlog
from sqlalchemy import Engine as Database
from sqlalchemy.exc import SQLAlchemyError

from models.connections.session import in_transaction
from models.leasing import leases, worker_registration
from models.leasing.leases import Lease
from scheduling.worker_facts import WorkerReport
from tasks.serving.batches.batch_job import BatchJob
from tasks.serving.batches.engine_thread import EngineThread
from tasks.serving.batches.served_model import ServedModel
from tasks.serving.results.result_writer import ResultWriter

# A worker without a batch writes only every third heartbeat. A planner takes a worker for lost after the time of eight
# (`processes/planner_rules.py`).
IDLE_BEATS = 3

log = structlog.get_logger()


class OpenJobs:
    """The jobs whose leases are renewed, from when a batch is taken until it is closed; thread-safe."""

    def __init__(self) -> None:
        self._by_lease: dict[Lease, BatchJob] = {}
        self._lock = Lock()
        self._over = False

    def add(self, job: BatchJob) -> None:
        """Adds a job, whose lease is renewed from now on."""
        with self._lock:
            if self._over:
                return job.closed.set()
            self._by_lease[job.lease] = job

    def close(self, leases: Collection[Lease]) -> None:
        """Releases the threads that wait for these batches, which are written or lost; ignores unknown leases."""
        with self._lock:
            for lease in self._by_lease.keys() & set(leases):
                self._by_lease.pop(lease).closed.set()

    def close_all(self) -> None:
        """Releases the threads that wait for any batch, also threads that come later, because the worker is leaving."""
        with self._lock:
            self._over = True
            while self._by_lease:
                self._by_lease.popitem()[1].closed.set()

    @property
    def any_open(self) -> bool:
        """Whether any job is open."""
        return bool(self._by_lease)

    def by_lease(self) -> dict[Lease, BatchJob]:
        """Returns a copy of the open jobs."""
        with self._lock:
            return dict(self._by_lease)


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """The rules for a worker's leases, from the settings of the same names; durations in seconds."""

    lease_s: float = 10.0
    heartbeat_s: float = 0.5
    stall_s: float = 60.0  # an engine that computes no step and no layer of a prefill for this long ends the process
    unreachable_s: float = 8.0  # a worker that receives none of its messages for this long ends itself


class LeaseHeartbeat(Thread):
    """A thread with a database connection of its own that renews all open leases every `heartbeat_s`."""

    def __init__(
        self,
        database: Database,
        renewals: Database,
        engine: EngineThread,
        writer: ResultWriter,
        jobs: OpenJobs,
        served: ServedModel,
        terms: LeaseTerms,
        on_broken: Callable[[str], None],
        on_wanted: Callable[[str], None] = lambda model: None,
    ) -> None:
        """`on_broken` is called with the reason why this process must end, after its batches went back to the queue.

        `renewals` has autocommit, so that a renewal's second statement sees batches that ended during its first one.
        `on_wanted` is called with the model that the planner wants instead of the registered one.
        """
        super().__init__(name="lease heartbeat", daemon=True)
        self._database, self._renewals = database, renewals
        self._engine, self._writer, self._jobs = engine, writer, jobs
        self._facts, self._report, self._terms = served.facts, served.report, terms
        self._on_broken, self._on_wanted = on_broken, on_wanted
        self.stays_registered = False  # whether the worker stops only to change its model
        self.leaves = False  # whether no batch is taken any more, because it would be blamed for the process's end
        self._incarnation = 0.0  # matches no worker, so nothing can be renewed or given back before `announce`
        self._stopping = Event()
        self._written_report = WorkerReport()
        self._idle_beats = 0  # heartbeats left out since the last one that was written
        self._unreachable_beats = 0  # heartbeats, not seconds, because a process that lacks CPU also beats late

    def announce(self) -> None:
        """Registers the worker; batches that an earlier process of the same name left go back to the queue."""
        report = self._report()
        with self._database.begin() as connection:
            name, terms = self._facts.name, self._terms
            self._incarnation = worker_registration.register(connection, self._facts)
            # in the same transaction, so that the planner never sees the worker without the bounds of its report
            leases.renew(connection, name, self._incarnation, {}, terms.lease_s, report=report, own_clock=time())
        self._written_report = report

    def deregister(self, failed: bool) -> None:
        """Gives open batches back, as suspects if the worker `failed`; marks it stopped unless `stays_registered`."""
        self.leaves = True
        deregister = in_transaction(self._database, worker_registration.deregister)
        deregister(self._facts.name, self._incarnation, failed, stopped=not self.stays_registered)

    def stop(self) -> None:
        """End the thread, and with it the renewals."""
        self._stopping.set()
        self.join()

    def run(self) -> None:
        """Check the engine and renew the leases until stopped, or until this process must end."""
        while not self._stopping.wait(self._terms.heartbeat_s):
            reason = self._fault()
            if reason is None:
                try:
                    report = self._report()
                    if self._beat_is_due(report):
                        reason = self._renew(report)
                except SQLAlchemyError as error:
                    log.warning("leases not renewed", error=str(error))
                except Exception as error:  # without renewals this process must not go on
                    log.exception("leases not renewed")
                    reason = f"the lease heartbeat failed: {error!r}"
            if reason is not None:
                return self._break_off(reason)

    def _beat_is_due(self, report: WorkerReport) -> bool:
        """Returns whether to write this heartbeat: for an idle worker, one in IDLE_BEATS.

        Every one is written while there are leases, lost messages, a changed report, a stopping engine, several models.
        """
        busy = self._jobs.any_open or self._unreachable_beats > 0 or self._engine.stopping
        busy = busy or report != self._written_report or bool(self._facts.loadable)
        self._idle_beats = 0 if busy else (self._idle_beats + 1) % IDLE_BEATS
        return self._idle_beats == 0

    def _fault(self) -> str | None:
        """Returns the fault of the engine's or the result writer's thread, or None if both work."""
        if not self._writer.is_alive() and not self._engine.stopping:
            return "the result writer's thread ended"
        if not self._engine.is_alive() and not self._engine.stopping:
            return "the engine's thread ended"
        if self._engine.silent_s() > self._terms.stall_s:
            return f"the engine made no step for {self._terms.stall_s:.0f} s"
        return None

    def _renew(self, report: WorkerReport) -> str | None:
        """Renews all leases, drops lost batches, removes cancelled rows; returns why this process must end, or None."""
        jobs = self._jobs.by_lease()
        progress = {lease: self._engine.progress(job) for lease, job in jobs.items()}
        with self._renewals.connect() as connection:
            renewal = leases.renew(
                connection,
                self._facts.name,
                self._incarnation,
                progress,
                self._terms.lease_s,
                stopping=self._engine.stopping and not self.stays_registered,
                report=report,
                own_clock=time(),
            )
        self._written_report = report
        not_renewed = {lease for lease in jobs if lease.batch_id not in renewal.held}
        # A batch leaves the open jobs only after its end is committed; the renewal may have come in between.
        ended = {lease for lease in not_renewed if lease.batch_id in renewal.closed}
        lost = (not_renewed - ended) & self._jobs.by_lease().keys()  # a batch that is no open job was closed meanwhile
        if lost:
            log.warning("leases lost", batches=sorted(lease.batch_id for lease in lost))
            self._engine.abandon(frozenset(lease.batch_id for lease in lost))
            self._jobs.close(lost)
        if renewal.cancels:
            self._engine.remove(renewal.cancels)
        if renewal.wanted_model not in (None, self._facts.model):
            self._on_wanted(str(renewal.wanted_model))
        if not renewal.registered:
            return "another process took this worker's name"
        self._unreachable_beats = self._unreachable_beats + 1 if renewal.unreachable else 0
        if self._unreachable_beats * self._terms.heartbeat_s > self._terms.unreachable_s:
            return "it takes no batch that it is sent: it may reach another broker, or none"
        return None

    def _break_off(self, reason: str) -> None:
        """Give the batches back as suspects, and call `on_broken`."""
        log.critical("worker given up", why=reason)
        try:
            self.deregister(failed=True)
        except SQLAlchemyError as error:
            log.error("worker not deregistered", error=str(error))
        self._on_broken(reason)
