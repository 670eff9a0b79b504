"""A worker process as the task `tasks.serve` sees it: takes a batch under a lease, has it served, waits for its end."""

from collections.abc import Callable
from time import monotonic

import structlog
from sqlalchemy import Engine as Database

from inference.local.engine import Engine
from inference.prompt_format import PromptFormat
from models import leases
from models.leases import WorkerRegistration
from models.tables import BatchStatus
from tasks.serving.batch_job import prepare
from tasks.serving.engine_events import BatchEnded
from tasks.serving.engine_thread import EngineThread
from tasks.serving.lease_heartbeat import LeaseHeartbeat, LeaseTerms
from tasks.serving.result_writer import ResultWriter

WRITE_WITHIN_S = 5.0  # what the database does not take in that time when the worker stops is computed again

log = structlog.get_logger()


class BatchRunner:
    """The engine's, the recorder's and the keeper's threads of one announced worker."""

    def __init__(
        self,
        database: Database,
        make_engine: Callable[[], Engine],
        prompt_format: PromptFormat,
        announcement: WorkerRegistration,
        terms: LeaseTerms,
        kick_planner: Callable[[], None],
        on_broken: Callable[[str], None],
    ) -> None:
        """Announce the worker; batches that an earlier process of its name left go back to the queue."""
        self._database, self._format, self._terms = database, prompt_format, terms
        self._name = announcement.name
        with database.begin() as connection:
            self._incarnation = leases.register(connection, announcement, terms.max_attempts)
        self._recorder = ResultWriter(
            database,
            prompt_format.decode,
            terms.max_attempts,
            on_closed=lambda closed: self._keeper.close(closed),
            on_written=kick_planner,
        )
        self._engine = EngineThread(make_engine, self._recorder.say)
        self._keeper = LeaseHeartbeat(database, self._engine, self._name, self._incarnation, terms, on_broken)
        for thread in (self._recorder, self._engine, self._keeper):
            thread.start()
        kick_planner()

    def serve(self, batch_id: int) -> None:
        """Serve a batch and return when it is written; does nothing if somebody has taken it before."""
        with self._database.begin() as connection:
            batch = leases.take_batch(connection, batch_id, self._name, self._terms.lease_s)
        if batch is None:
            log.info("batch not taken", batch=batch_id)
            return
        try:
            work = prepare(batch, self._format, self._engine.max_positions)
        except Exception:  # a terminal state for the batch, whatever is wrong with it
            log.exception("batch not prepared", batch=batch_id)
            self._recorder.say(BatchEnded(batch.lease, BatchStatus.lost, monotonic(), counts_as_attempt=True))
            return
        self._keeper.hold(work)
        self._engine.submit(work)
        work.over.wait()

    def wind_down(self, within_s: float) -> None:
        """Take up nothing any more; what still runs after `within_s` goes back to the queue."""
        self._engine.stop(within_s)

    def stop(self) -> None:
        """Write what there is to write, say goodbye, end every thread."""
        self._engine.stop(0.0)
        self._engine.join()
        self._recorder.stop(WRITE_WITHIN_S)
        self._keeper.stop()
        self.say_goodbye(failed=False)

    def say_goodbye(self, failed: bool) -> None:
        """Give back whatever is left."""
        with self._database.begin() as connection:
            leases.deregister(connection, self._name, self._incarnation, failed, self._terms.max_attempts)
