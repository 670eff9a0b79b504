"""Keeps a worker's leases: renews them, hears what was cancelled or lost, and watches that the engine lives."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from threading import Event as Flag
from threading import Lock, Thread
from time import monotonic

import structlog
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from models import leases
from models.leases import Lease
from tasks.serving.batch_job import BatchJob
from tasks.serving.engine_thread import EngineThread

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """What a worker's leases go by; durations in seconds."""

    lease_s: float = 10.0
    heartbeat_s: float = 0.5
    stall_s: float = 60.0  # an engine that makes no step for so long is given up
    max_attempts: int = 5


class LeaseHeartbeat(Thread):
    """A thread with a connection of its own, that speaks with the database twice a second."""

    def __init__(
        self,
        database: Engine,
        engine: EngineThread,
        worker: str,
        incarnation: float,
        terms: LeaseTerms,
        on_broken: Callable[[str], None],
    ) -> None:
        """`on_broken` is told why this process must end."""
        super().__init__(name="keeper", daemon=True)
        self._database, self._engine = database, engine
        self._worker, self._incarnation = worker, incarnation
        self._terms = terms
        self._on_broken = on_broken
        self._held: dict[Lease, BatchJob] = {}
        self._lock = Lock()
        self._stopping = Flag()

    def hold(self, work: BatchJob) -> None:
        """Renew this work's lease until it is over."""
        with self._lock:
            self._held[work.lease] = work

    def close(self, closed: Collection[Lease]) -> None:
        """These are over: whoever waits for them goes on."""
        with self._lock:
            for lease in self._held.keys() & set(closed):
                self._held.pop(lease).over.set()

    def stop(self) -> None:
        """Renew no more."""
        self._stopping.set()
        self.join()

    def run(self) -> None:
        """Renew until stopped."""
        while not self._stopping.wait(self._terms.heartbeat_s):
            alive_at = self._engine.alive_at
            if not self._engine.is_alive() and not self._engine.stopping:
                return self._on_broken("the engine's thread ended")
            if alive_at is not None and monotonic() - alive_at > self._terms.stall_s:
                return self._on_broken(f"the engine made no step for {self._terms.stall_s:.0f} s")
            try:
                announced = self._renew()
            except SQLAlchemyError as error:
                log.warning("leases not renewed", error=str(error))
                continue
            if not announced:
                return self._on_broken("another process took this worker's name")

    def _renew(self) -> bool:
        with self._lock:
            held = dict(self._held)
        progress = {lease: self._engine.progress(work) for lease, work in held.items()}
        with self._database.begin() as connection:
            renewal = leases.renew(connection, self._worker, self._incarnation, progress, self._terms.lease_s)
        lost = {lease for lease in held if lease.batch_id not in renewal.held}
        if lost and (lost := lost & self._still_held()):
            log.warning("leases lost", batches=sorted(lease.batch_id for lease in lost))
            self._engine.abandon(frozenset(lease.batch_id for lease in lost))
            self.close(lost)
        if renewal.cancels:
            self._engine.remove(renewal.cancels)
        return renewal.registered

    def _still_held(self) -> set[Lease]:
        with self._lock:
            return set(self._held)
