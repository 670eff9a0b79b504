"""The task `tasks.serve`: takes a batch under a lease, submits it to the engine's thread, waits until it is closed."""

from collections.abc import Callable
from time import monotonic

import structlog
from sqlalchemy import Engine as Database

from inference.engine_errors import TokenizerAway
from inference.request_tokens import RequestTokens
from inference.serving_engine import ServingEngine
from models.leasing import leases
from models.leasing.leases import WorkerOffer
from models.leasing.requeue import Failure
from models.leasing.worker_registration import WorkerRegistration
from models.tables import BatchStatus
from tasks.serving.batch_job import PrepareFormat, prepare, take_any_format
from tasks.serving.engine_events import BatchEnded
from tasks.serving.engine_thread import EngineThread
from tasks.serving.lease_heartbeat import LeaseHeartbeat, LeaseTerms, OpenJobs
from tasks.serving.live_tokens import LiveRows
from tasks.serving.result_writer import ResultWriter

# Seconds for which a stopping worker waits for the database to store its last results; unwritten results are generated
# again. Longer than a transaction, and with DRAIN_S of the worker's process shorter than a supervisor's patience.
WRITE_WITHIN_S = 5.0

log = structlog.get_logger()


class BatchRunner:
    """One worker with its three threads: the engine's, the result writer's and the lease heartbeat's."""

    def __init__(
        self,
        database: Database,
        make_engine: Callable[[], ServingEngine],
        prompt_format: RequestTokens,
        announcement: WorkerRegistration,
        terms: LeaseTerms,
        renewals: Database,
        kick_planner: Callable[[], None],
        on_broken: Callable[[str], None],
        live_rows: LiveRows,
        offer: Callable[[], WorkerOffer] = WorkerOffer,
        salt_key: str = "",
        prepare_format: PrepareFormat = take_any_format,
    ) -> None:
        """Makes the engine and the threads; nothing runs before `start`.

        `renewals` has a connection for the leases' renewals alone, with autocommit.
        `salt_key` is the key of the tenants' cache salts: the same for all workers, and unknown to tenants.
        """
        self._database, self._format, self._terms, self._salt_key = database, prompt_format, terms, salt_key
        self._prepare_format = prepare_format
        self._name, self._lacks, self._kick_planner = announcement.name, announcement.lacks, kick_planner
        self._jobs = OpenJobs()
        self._writer = ResultWriter(
            database,
            prompt_format,
            terms.max_attempts,
            on_closed=self._jobs.close,
            on_written=kick_planner,
        )
        self._engine = EngineThread(make_engine, self._writer.record, live_rows)
        self._heartbeat = LeaseHeartbeat(
            database, renewals, self._engine, self._writer, self._jobs, announcement, terms, on_broken, offer
        )

    def start(self) -> None:
        """Announce the worker, so that the planner sends it batches, and start the threads."""
        self._heartbeat.announce()
        for thread in (self._writer, self._engine, self._heartbeat):
            thread.start()
        self._kick_planner()

    def serve(self, batch_id: int) -> None:
        """Serve a batch and return once it is closed; does nothing if the batch is not this worker's to take."""
        with self._database.begin() as connection:
            batch = leases.take_batch(connection, batch_id, self._name, self._terms.lease_s)
            served_again = batch is None and leases.prove_consuming(connection, self._name)
        if batch is None:
            log.info("batch not taken", batch=batch_id)
            if served_again:
                log.info("messages arrive again")
                self._kick_planner()
            return
        try:
            job = prepare(
                batch,
                self._format,
                self._engine.max_positions,
                self._lacks,
                self._salt_key,
                self._prepare_format,
            )
        except TokenizerAway:  # the tokenizer's server is unreachable, and no work of this batch was done
            self._writer.record(BatchEnded(batch.lease, BatchStatus.lost, monotonic()))
            return
        except Exception as error:  # after any error the batch must reach a final state
            log.exception("batch not prepared", batch=batch_id)
            failure = Failure(batch_id, type(error).__name__)
            self._writer.record(BatchEnded(batch.lease, BatchStatus.lost, monotonic(), failure=failure))
            return
        self._jobs.add(job)
        self._engine.submit(job)
        job.closed.wait()

    @property
    def works(self) -> bool:
        """Whether the worker renews its leases; the supervisor restarts a worker that does not renew them."""
        return self._heartbeat.is_alive()

    def drain(self, within_s: float) -> None:
        """Begin no further batch; rows that still run after `within_s` seconds go back to the queue."""
        self._engine.stop(within_s)

    def stop(self) -> None:
        """Return what still runs to the queue, write all results, end the threads, deregister the worker."""
        self._engine.stop(0.0)
        self._engine.join()
        self._writer.stop(WRITE_WITHIN_S)
        self._heartbeat.stop()
        self._heartbeat.deregister(failed=False)
