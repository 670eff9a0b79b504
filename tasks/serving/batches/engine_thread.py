"""The engine's thread, one in each worker process: it alone uses the engine, and never waits for database or broker.

Jobs are served in the order of their submission. A run-to-completion batch runs alone. Batches whose rows join share
the engine for as long as any of them has rows. All events go to `record`.
"""

from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from threading import Condition, Thread
from time import monotonic

import structlog

from inference.engine_requests import DecodingRequest, FinishedRow
from inference.serving_engine import ServingEngine
from models.leasing.batch_results import BatchEnded, RowReturned
from models.leasing.requeue import Failure
from models.tables import BatchStatus
from tasks.serving.batches.batch_job import BatchJob
from tasks.serving.batches.continuous_batches import ContinuousBatches
from tasks.serving.batches.static_batch import StaticBatch
from tasks.serving.results.engine_events import Record, RowEnded
from tasks.serving.results.live_tokens import LiveRows

# After a failure a new engine must first serve this row, with a prefill and a decode step. That fails if the CUDA
# context is broken for the rest of the process.
TRIAL = DecodingRequest("trial", prompt_ids=(0,), limit=2, turns=(("user", "."),))

# After these seconds a batch for which memory is short goes back, because another worker may serve it. Not tuned.
MEMORY_WAIT_S = 10.0

log = structlog.get_logger()


class EngineThread(Thread):
    """Serves submitted jobs on an engine made by `make_engine`, and makes another one after an unexpected error.

    If the new engine does not work either, the device is broken, and the thread ends.
    """

    def __init__(
        self,
        make_engine: Callable[[], ServingEngine],
        record: Record,
        live_rows: LiveRows,
        memory_wait_s: float = MEMORY_WAIT_S,
    ) -> None:
        super().__init__(name="engine", daemon=True)
        self._memory_wait_s = memory_wait_s
        self._make_engine, self._record, self._live_rows = make_engine, record, live_rows
        self._engine = make_engine()
        self._queue: deque[BatchJob] = deque()
        self._changed = Condition()  # guards the queue and `_stop_at`
        self._removals: SimpleQueue[frozenset[str]] = SimpleQueue()
        self._abandoned: SimpleQueue[frozenset[int]] = SimpleQueue()
        self._stop_at: float | None = None
        self._broken = False  # whether the device has stopped working
        self._running: list[BatchJob] = []  # jobs begun since the engine was last empty
        self.max_positions = self._engine.max_positions
        self.steps = 0
        self.last_step_at: float | None = None  # None while there is nothing to serve
        self._seen_layers, self._layer_seen_at = 0, 0.0  # the prefilled layers, and when `silent_s` saw them change

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
        """Serves a job and the jobs that join it; returns the error's class name if the engine failed."""
        try:
            if job.joins:
                self._serve_continuous(job)
            else:
                self._record(*job.began(monotonic()))
                batch = StaticBatch(self._engine, job, self._record)
                batch.serve(on_step=lambda: self._after_step(batch))
        except Exception as error:  # the traceback keeps the old engine's memory until this method returns
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
        self._live_rows.collect(self._engine)  # publishes the first tokens, which the prefill gave
        while batches.open:
            batches.step()
            self._after_step(batches)
            while (joiner := self._next_joiner(batches)) is not None:
                if batches.admit(joiner):
                    self._live_rows.collect(self._engine)
                else:
                    self._put_back(joiner)

    def _after_step(self, batch: StaticBatch | ContinuousBatches) -> None:
        """Counts the step, then carries out what other threads asked for since the last step."""
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
        """Begins the first queued job if it may join the running batch; returns None if it must wait or is missing."""
        if not self._queue:
            return None
        with self._changed:
            job = self._queue[0]
            if job.joins and batches.lacks_memory(job):
                job.waits_since = job.waits_since or monotonic()
                if monotonic() - job.waits_since >= self._memory_wait_s:
                    self._give_back_queued()
                    return None
            return self._begin() if job.joins and self._stop_at is None and batches.may_join(job) else None

    def _begin(self) -> BatchJob:
        job = self._queue.popleft()
        self.last_step_at = monotonic()
        self._running.append(job)
        self._live_rows.begin(job.streamed)
        return job

    def _put_back(self, job: BatchJob) -> None:
        """Makes the job the next one again, because memory was short; gives it back if the thread stops."""
        self._running.remove(job)
        with self._changed:
            self._queue.appendleft(job)
            if self._stop_at is not None:
                self._give_back_queued()

    def _remove_queued(self, request_ids: frozenset[str], now: float) -> None:
        with self._changed:
            for job in self._queue:
                for sequence in [sequence for sequence in job.sequences if sequence.id in request_ids]:
                    job.sequences = tuple(other for other in job.sequences if other is not sequence)
                    removed = FinishedRow(sequence.id, sequence.generated_ids, "removed")
                    self._record(RowEnded(job.lease, removed, (), now, answer_form=sequence.answer_form))

    def _fail_running(self, error: str | None) -> None:
        failure = Failure(self._running[0].lease.batch_id, error)
        at = monotonic()
        self._record(*(BatchEnded(job.lease, BatchStatus.lost, at, failure=failure) for job in self._running))

    # the methods that other threads call

    def submit(self, job: BatchJob) -> None:
        """Serves this job after the jobs submitted before; a stopping thread gives its requests back at once."""
        with self._changed:
            if self._stop_at is None and not self._broken:
                self._queue.append(job)
                self._changed.notify()
                return
        self._record(BatchEnded(job.lease, BatchStatus.lost, monotonic()))

    def progress(self, job: BatchJob) -> int:
        """Returns the most tokens that a running row of this job has gained so far; 0 without a running row."""
        rows = self._engine.rows
        return max((rows[one.id] - len(one.generated_ids) for one in job.sequences if one.id in rows), default=0)

    def silent_s(self) -> float:
        """Returns the seconds since the last step, or since a call saw a prefill progress; 0 if nothing is served."""
        now, last_step_at, layers = monotonic(), self.last_step_at, self._engine.prefilled_layers
        if layers != self._seen_layers:
            self._seen_layers, self._layer_seen_at = layers, now
        return 0.0 if last_step_at is None else now - max(last_step_at, self._layer_seen_at)

    def remove(self, request_ids: frozenset[str]) -> None:
        """Lets the thread end these requests after the next step, whether they run or are queued here."""
        self._removals.put(request_ids)

    def abandon(self, batch_ids: frozenset[int]) -> None:
        """Lets the thread drop these batches after the next step without recording anything: their leases are lost."""
        self._abandoned.put(batch_ids)

    def stop(self, within_s: float) -> None:
        """Gives back the jobs that have not begun, and lets the thread end.

        Running rows go back with their tokens after the first step that ends at least `within_s` seconds from now.
        """
        with self._changed:
            self._stop_at = monotonic() + within_s
            self._give_back_queued()
            self._changed.notify()

    def give_back_late(self) -> None:
        """Gives back the running rows, with their tokens, while a step goes on that takes too long.

        Events that the step still records are dropped, because the batches have ended. A row's newest token is left
        out, because it may be the row's end; so are all new tokens of a row that needs their log probabilities.
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
