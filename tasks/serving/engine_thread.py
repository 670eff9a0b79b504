"""The engine's thread: one a worker process; it alone touches the engine, and it never waits for database or broker.

Batches come in through `submit` and are served in that order: one that runs to completion alone, those that join
together for as long as any lasts. What happens goes out through `say`.
"""

from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from threading import Condition, Thread
from time import monotonic

import structlog

from inference.local.engine import Engine
from inference.sequences import FinishedSequence
from models.tables import BatchStatus
from tasks.serving.batch_job import BatchJob
from tasks.serving.continuous_batches import ContinuousBatches
from tasks.serving.engine_events import BatchBegan, BatchEnded, Event, RowEnded, RowFailed
from tasks.serving.static_batch import StaticBatch

MOST_FAILURES = 3  # in a row: then the device is thought broken

log = structlog.get_logger()


class EngineThread(Thread):
    """Serves submitted work on an engine that `make_engine` makes, anew after an error that nobody foresaw."""

    def __init__(self, make_engine: Callable[[], Engine], say: Callable[[Event], None]) -> None:
        super().__init__(name="engine", daemon=True)
        self._make_engine, self._say = make_engine, say
        self._engine = make_engine()
        self._waiting: deque[BatchJob] = deque()
        self._changed = Condition()
        self._removals: SimpleQueue[frozenset[str]] = SimpleQueue()
        self._abandoned: SimpleQueue[frozenset[int]] = SimpleQueue()
        self._stop_at: float | None = None
        self._underway: list[BatchJob] = []
        self.max_positions = self._engine.loaded.max_positions
        self.steps = 0
        self.alive_at: float | None = None  # the engine's last step; None while it has nothing to do

    def submit(self, work: BatchJob) -> None:
        """Serve this after what was submitted before; once stopping, give it back at once."""
        with self._changed:
            if self._stop_at is None:
                self._waiting.append(work)
                self._changed.notify()
                return
        self._say(BatchEnded(work.lease, BatchStatus.lost, monotonic()))

    def progress(self, work: BatchJob) -> int:
        """Tokens that each row of this work that still runs has gained."""
        return 0 if work.first_step is None else self.steps - work.first_step

    def remove(self, request_ids: frozenset[str]) -> None:
        """End these requests, wherever they are here."""
        self._removals.put(request_ids)

    def abandon(self, batch_ids: frozenset[int]) -> None:
        """Forget these batches: they are not this worker's any more."""
        self._abandoned.put(batch_ids)

    def stop(self, within_s: float) -> None:
        """Take nothing up any more; what still runs after `within_s` goes back with what was generated; then end."""
        with self._changed:
            self._stop_at = monotonic() + within_s
            self._changed.notify()

    @property
    def stopping(self) -> bool:
        """Whether it was asked to end."""
        return self._stop_at is not None

    def run(self) -> None:
        """Serve until stopped, or until the device is thought broken."""
        failures = 0
        while failures < MOST_FAILURES and (work := self._next()) is not None:
            try:
                self._serve(work)
                failures = 0
            except Exception:
                failures += 1
                log.exception("engine failed", batches=[work.lease.batch_id for work in self._underway])
                for failed in self._underway:
                    self._say(BatchEnded(failed.lease, BatchStatus.lost, monotonic(), counts_as_attempt=True))
                self._engine = self._make_engine()
            self._underway.clear()

    def _serve(self, work: BatchJob) -> None:
        if not work.joins:
            running = StaticBatch(self._engine, work, self._say)
            running.serve(on_step=lambda: self._stepped(running))
            return
        joining = ContinuousBatches(self._engine, self._say)
        joining.admit(work)
        while joining.batches:
            joining.step()
            self._stepped(joining)
            while (joiner := self._next_joiner()) is not None:
                joining.admit(joiner)

    def _stepped(self, running: StaticBatch | ContinuousBatches) -> None:
        """Between two steps: note that the engine lives, do what was asked for meanwhile."""
        self.steps += 1
        self.alive_at = now = monotonic()
        while not self._removals.empty():
            request_ids = self._removals.get()
            running.remove(request_ids)
            self._remove_waiting(request_ids, now)
        while not self._abandoned.empty():
            batch_ids = self._abandoned.get()
            running.abandon(batch_ids)
            with self._changed:
                self._waiting = deque(work for work in self._waiting if work.lease.batch_id not in batch_ids)
        if self._stop_at is not None and now >= self._stop_at:
            running.give_back()

    def _next(self) -> BatchJob | None:
        """The next work, waited for; None to end."""
        with self._changed:
            self.alive_at = None
            while not self._waiting and self._stop_at is None:
                self._changed.wait()
            if self._stop_at is None:
                return self._begin()
            for work in self._waiting:
                self._say(BatchEnded(work.lease, BatchStatus.lost, monotonic()))
            return None

    def _next_joiner(self) -> BatchJob | None:
        """The next work if it joins what runs."""
        if not self._waiting:
            return None
        with self._changed:
            return self._begin() if self._waiting[0].joins and self._stop_at is None else None

    def _begin(self) -> BatchJob:
        work = self._waiting.popleft()
        work.first_step, self.alive_at = self.steps, monotonic()
        self._underway.append(work)
        self._say(BatchBegan(work.lease, self.alive_at))
        for request in work.unservable:
            self._say(RowFailed(work.lease, request.request_id, request.code, request.message, self.alive_at))
        return work

    def _remove_waiting(self, request_ids: frozenset[str], now: float) -> None:
        with self._changed:
            for work in self._waiting:
                for sequence in [sequence for sequence in work.sequences if sequence.id in request_ids]:
                    work.sequences = tuple(other for other in work.sequences if other is not sequence)
                    self._say(
                        RowEnded(work.lease, FinishedSequence(sequence.id, sequence.generated_ids, "removed"), (), now)
                    )
