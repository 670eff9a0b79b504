"""The engine's thread, one in each worker process: it alone touches the engine and never waits for database or broker.

Jobs are served in the order of their submission. A run-to-completion batch runs alone; batches that join share the
engine for as long as any of them has rows. All events go to `record`.
"""

from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from threading import Condition, Thread
from time import monotonic

import structlog

from inference.sequences import FinishedSequence, Sequence
from inference.serving_engine import ServingEngine
from models.leasing.batch_results import BatchBegan, BatchEnded, RowReturned
from models.leasing.requeue import Failure
from models.tables import BatchStatus
from tasks.serving.batches.batch_job import BatchJob
from tasks.serving.batches.continuous_batches import ContinuousBatches
from tasks.serving.batches.static_batch import StaticBatch
from tasks.serving.results.engine_events import Record, RowEnded, RowFailed
from tasks.serving.results.live_tokens import LiveRows

# After a failure a new engine must first serve this row: a prefill and a decode step. It fails if the CUDA context is
# broken for the rest of the process.
TRIAL = Sequence("trial", prompt_ids=(0,), limit=2, turns=(("user", "."),))

log = structlog.get_logger()


class EngineThread(Thread):
    """Serves submitted jobs on an engine made by `make_engine`, and makes another one after an unexpected error.

    If the new engine does not work either, the device is broken, and the thread ends.
    """

    def __init__(self, make_engine: Callable[[], ServingEngine], record: Record, live_rows: LiveRows) -> None:
        super().__init__(name="engine", daemon=True)
        self._make_engine, self._record, self._live_rows = make_engine, record, live_rows
        self._engine = make_engine()
        self._queue: deque[BatchJob] = deque()
        self._changed = Condition()  # guards the queue and `_stop_at`
        self._removals: SimpleQueue[frozenset[str]] = SimpleQueue()
        self._abandoned: SimpleQueue[frozenset[int]] = SimpleQueue()
        self._stop_at: float | None = None
        self._broken = False  # whether the device works no more
        self._running: list[BatchJob] = []  # jobs begun since the engine was last empty
        self.max_positions = self._engine.max_positions
        self.steps = 0
        self.last_step_at: float | None = None  # None while there is nothing to serve

    def run(self) -> None:
        """Serve job after job until stopped, or until the device is broken."""
        while (job := self._next_job()) is not None:
            error = self._serve(job)
            works = error is None or self._new_engine_works()
            if error is not None:
                self._fail_running(error if works else None)
            self._running.clear()
            if not works:
                with self._changed:
                    self._broken = True
                    return self._give_back_queued()

    def _serve(self, job: BatchJob) -> str | None:
        """Serve a job and those that join it; returns the error's class name if the engine failed."""
        try:
            if job.joins:
                self._serve_continuous(job)
            else:
                batch = StaticBatch(self._engine, job, self._record)
                batch.serve(on_step=lambda: self._after_step(batch))
        except Exception as error:  # its traceback keeps the old engine's memory until this returns
            log.exception("engine failed", batches=[failed.lease.batch_id for failed in self._running])
            return type(error).__name__
        return None

    def _new_engine_works(self) -> bool:
        """Replace the engine; returns whether the new one can serve at all."""
        try:
            self._engine = self._make_engine()
            self._engine.run([TRIAL])
        except Exception:
            log.exception("device broken")
            return False
        return True

    def _next_job(self) -> BatchJob | None:
        """Wait for the next job and begin it; returns None once stopped."""
        with self._changed:
            self.last_step_at = None
            while not self._queue and self._stop_at is None:
                self._changed.wait()
            return self._begin() if self._stop_at is None else None

    def _give_back_queued(self) -> None:
        """Give back the jobs that have not begun; the caller holds the lock."""
        while self._queue:
            self._record(BatchEnded(self._queue.popleft().lease, BatchStatus.lost, monotonic()))

    def _serve_continuous(self, job: BatchJob) -> None:
        """Decode until no row is left; after each step, the next jobs may join."""
        batches = ContinuousBatches(self._engine, self._record)
        batches.admit(job)
        self._live_rows.collect(self._engine)  # the first tokens, which the prefill gave
        while batches.open:
            batches.step()
            self._after_step(batches)
            while (joiner := self._next_joiner(batches)) is not None:
                batches.admit(joiner)
                self._live_rows.collect(self._engine)

    def _after_step(self, batch: StaticBatch | ContinuousBatches) -> None:
        """Count the step, then handle other threads' calls since the last step."""
        self.steps += 1
        self.last_step_at = now = monotonic()
        self._live_rows.collect(self._engine)
        while not self._removals.empty():
            request_ids = self._removals.get()
            batch.remove(request_ids)
            self._remove_queued(request_ids, now)
        while not self._abandoned.empty():
            batch_ids = self._abandoned.get()
            batch.abandon(batch_ids)
            with self._changed:
                self._queue = deque(job for job in self._queue if job.lease.batch_id not in batch_ids)
        if self._stop_at is not None and now >= self._stop_at:
            batch.return_rows()

    def _next_joiner(self, batches: ContinuousBatches) -> BatchJob | None:
        """Begin the first queued job if it joins the running batch; returns None if it must wait or none is queued."""
        if not self._queue:
            return None
        with self._changed:
            job = self._queue[0]
            return self._begin() if job.joins and self._stop_at is None and batches.may_join(job) else None

    def _begin(self) -> BatchJob:
        job = self._queue.popleft()
        self.last_step_at = monotonic()
        self._running.append(job)
        self._live_rows.begin(job.streamed)
        self._record(BatchBegan(job.lease, self.last_step_at))
        for request in job.unservable:
            self._record(RowFailed(job.lease, request.request_id, request.code, request.message, self.last_step_at))
        return job

    def _remove_queued(self, request_ids: frozenset[str], now: float) -> None:
        with self._changed:
            for job in self._queue:
                for sequence in [sequence for sequence in job.sequences if sequence.id in request_ids]:
                    job.sequences = tuple(other for other in job.sequences if other is not sequence)
                    removed = FinishedSequence(sequence.id, sequence.generated_ids, "removed")
                    self._record(RowEnded(job.lease, removed, (), now, answer_form=sequence.answer_form))

    def _fail_running(self, error: str | None) -> None:
        failure = Failure(self._running[0].lease.batch_id, error)
        at = monotonic()
        self._record(*(BatchEnded(job.lease, BatchStatus.lost, at, failure=failure) for job in self._running))

    # the methods that other threads call

    def submit(self, job: BatchJob) -> None:
        """Serve this job after those submitted before; once stopping, its requests go back to the queue at once."""
        with self._changed:
            if self._stop_at is None and not self._broken:
                self._queue.append(job)
                self._changed.notify()
                return
        self._record(BatchEnded(job.lease, BatchStatus.lost, monotonic()))

    def progress(self, job: BatchJob) -> int:
        """The most tokens that a running row of this job has gained so far; 0 without a running row."""
        rows = self._engine.rows
        return max((rows[one.id] - len(one.generated_ids) for one in job.sequences if one.id in rows), default=0)

    def remove(self, request_ids: frozenset[str]) -> None:
        """After the next step, end these requests, whether they run or are queued here."""
        self._removals.put(request_ids)

    def abandon(self, batch_ids: frozenset[int]) -> None:
        """After the next step, drop these batches without recording anything: their leases are lost."""
        self._abandoned.put(batch_ids)

    def stop(self, within_s: float) -> None:
        """Give back the jobs that have not begun, then end.

        After the first step that ends `within_s` seconds from now or later, running rows go back with their tokens.
        """
        with self._changed:
            self._stop_at = monotonic() + within_s
            self._give_back_queued()
            self._changed.notify()

    def give_back_late(self) -> None:
        """Give back the running rows beside a step that takes too long, with the tokens that they had before it.

        What the step still records comes too late, because their batches have ended. A row's newest token is left out,
        since the step may just have ended the row with it, and so are tokens without their log probabilities.
        """
        running = list(self._running)
        generated = self._engine.generated({row.id: 0 for job in running for row in job.sequences})
        for job in running:
            for row in job.sequences:
                known = generated[row.id].ids[:-1] if row.id in generated and row.top_logprobs is None else ()
                self._record(
                    RowReturned(job.lease, row.id, max(row.generated_ids, known, key=len), False, row.logprobs)
                )
            self._record(BatchEnded(job.lease, BatchStatus.lost, monotonic()))

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stop_at is not None
