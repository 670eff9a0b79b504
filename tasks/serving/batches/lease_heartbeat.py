"""Keeps a worker registered and its leases alive, reads cancels and lost leases, and checks the engine."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from threading import Event, Lock, Thread
from time import monotonic

import structlog
from sqlalchemy import Engine as Database
from sqlalchemy.exc import SQLAlchemyError

from models.leasing import leases, worker_registration
from models.leasing.leases import Lease, WorkerOffer
from models.leasing.worker_registration import WorkerRegistration
from tasks.serving.batches.batch_job import BatchJob
from tasks.serving.batches.engine_thread import EngineThread
from tasks.serving.results.result_writer import ResultWriter

# A worker without a batch writes only every third beat. A planner takes a worker for lost after eight beats
# (`tasks/planning/planner_rules.py`).
IDLE_BEATS = 3

log = structlog.get_logger()


class OpenJobs:
    """The jobs whose leases are renewed, from taking the batch until it is closed; thread-safe."""

    def __init__(self) -> None:
        self._by_lease: dict[Lease, BatchJob] = {}
        self._lock = Lock()
        self._over = False

    def add(self, job: BatchJob) -> None:
        """Renew the lease of this job from now on."""
        with self._lock:
            if self._over:
                return job.closed.set()
            self._by_lease[job.lease] = job

    def close(self, leases: Collection[Lease]) -> None:
        """Release the threads that wait for these batches, which are written or lost; ignores other leases."""
        with self._lock:
            for lease in self._by_lease.keys() & set(leases):
                self._by_lease.pop(lease).closed.set()

    def close_all(self) -> None:
        """Release the threads that wait for any batch, and those that come later: the worker is leaving."""
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
    stall_s: float = 60.0  # an engine that makes no step for this long ends the process
    max_attempts: int = 3
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
        announcement: WorkerRegistration,
        terms: LeaseTerms,
        on_broken: Callable[[str], None],
        offer: Callable[[], WorkerOffer] = WorkerOffer,
        on_wanted: Callable[[str], None] = lambda model: None,
    ) -> None:
        """`on_broken` is called with the reason why this process must end, after its batches went back to the queue.

        `renewals` has autocommit, so that a renewal's second statement sees the batches that ended in its first one.
        `on_wanted` is called with the model that the planner wants instead of the announced one.
        """
        super().__init__(name="lease heartbeat", daemon=True)
        self._database, self._renewals = database, renewals
        self._engine, self._writer, self._jobs = engine, writer, jobs
        self._announcement, self._terms = announcement, terms
        self._on_broken, self._offer, self._on_wanted = on_broken, offer, on_wanted
        self.stays_registered = False  # it stops only to change its model
        self._incarnation = 0.0  # matches no worker, so nothing can be renewed or given back before `announce`
        self._stopping = Event()
        self._written_offer = WorkerOffer()
        self._idle_beats = 0  # beats left out since the last one that was written
        self._unreachable_beats = 0  # counted in beats, not seconds: a process that lacks CPU also beats late

    def announce(self) -> None:
        """Register the worker; batches that an earlier process of its name left go back to the queue."""
        offer = self._offer()
        with self._database.begin() as connection:
            name, terms = self._announcement.name, self._terms
            self._incarnation = worker_registration.register(connection, self._announcement, terms.max_attempts)
            # in the same transaction, so that the planner never sees the worker without the bounds of its offer
            leases.renew(connection, name, self._incarnation, {}, terms.lease_s, offer=offer)
        self._written_offer = offer

    def deregister(self, failed: bool) -> None:
        """Give the open batches back to the queue, as suspects if it `failed`; mark the worker as stopped or not."""
        with self._database.begin() as connection:
            worker_registration.deregister(
                connection,
                self._announcement.name,
                self._incarnation,
                failed,
                self._terms.max_attempts,
                stopped=not self.stays_registered,
            )

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
                    offer = self._offer()
                    if self._beat_is_due(offer):
                        reason = self._renew(offer)
                except SQLAlchemyError as error:
                    log.warning("leases not renewed", error=str(error))
                except Exception as error:  # without renewals this process must not go on
                    log.exception("leases not renewed")
                    reason = f"the lease heartbeat failed: {error!r}"
            if reason is not None:
                return self._break_off(reason)

    def _beat_is_due(self, offer: WorkerOffer) -> bool:
        """Returns whether to write this beat: of an idle worker one in IDLE_BEATS.

        Each is written with leases, lost messages, a changed offer, a stopping engine or several models.
        """
        busy = self._jobs.any_open or self._unreachable_beats > 0 or self._engine.stopping
        busy = busy or offer != self._written_offer or bool(self._announcement.loadable)
        self._idle_beats = 0 if busy else (self._idle_beats + 1) % IDLE_BEATS
        return self._idle_beats == 0

    def _fault(self) -> str | None:
        """Returns the fault of the engine's or the result writer's thread, or None if both work."""
        if not self._writer.is_alive() and not self._engine.stopping:
            return "the result writer's thread ended"
        last_step_at = self._engine.last_step_at
        if not self._engine.is_alive() and not self._engine.stopping:
            return "the engine's thread ended"
        if last_step_at is not None and monotonic() - last_step_at > self._terms.stall_s:
            return f"the engine made no step for {self._terms.stall_s:.0f} s"
        return None

    def _renew(self, offer: WorkerOffer) -> str | None:
        """Renew all leases, drop lost batches, remove cancelled rows; returns the reason if this process must end."""
        jobs = self._jobs.by_lease()
        progress = {lease: self._engine.progress(job) for lease, job in jobs.items()}
        with self._renewals.connect() as connection:
            renewal = leases.renew(
                connection,
                self._announcement.name,
                self._incarnation,
                progress,
                self._terms.lease_s,
                stopping=self._engine.stopping and not self.stays_registered,
                offer=offer,
            )
        self._written_offer = offer
        not_renewed = {lease for lease in jobs if lease.batch_id not in renewal.held}
        # A batch leaves the open jobs only after its end is committed; the renewal may have read in between.
        ended = {lease for lease in not_renewed if lease.batch_id in renewal.closed}
        lost = (not_renewed - ended) & self._jobs.by_lease().keys()  # the other batches were closed meanwhile
        if lost:
            log.warning("leases lost", batches=sorted(lease.batch_id for lease in lost))
            self._engine.abandon(frozenset(lease.batch_id for lease in lost))
            self._jobs.close(lost)
        if renewal.cancels:
            self._engine.remove(renewal.cancels)
        if renewal.wanted_model not in (None, self._announcement.model):
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
