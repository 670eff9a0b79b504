"""The task `tasks.serve`: takes a batch under a lease, submits it to the engine's thread, waits until it is closed."""

from collections.abc import Callable
from threading import Thread
from time import monotonic

import structlog
from sqlalchemy import Engine as Database
from sqlalchemy.exc import SQLAlchemyError

from inference.engine_errors import TokenizerAway
from models.leasing import leases
from models.leasing.batch_results import BatchEnded
from models.leasing.requeue import Failure
from models.tables import BatchStatus
from tasks.serving.batches.batch_job import prepare
from tasks.serving.batches.engine_thread import EngineThread
from tasks.serving.batches.lease_heartbeat import LeaseHeartbeat, LeaseTerms, OpenJobs
from tasks.serving.batches.served_model import ServedModel
from tasks.serving.results.live_tokens import LiveRows
from tasks.serving.results.result_writer import ResultWriter

# Seconds of a drain by `stop` or before a change of model: enough for a step and a transaction that writes results.
STOP_WITHIN_S = 5.0
# The share at the end of a drain that is left for writing results: a second of the default five, and most transactions
# take some hundredths. A step that has not ended before that is not awaited. Not tuned.
WRITING_SHARE = 0.2

log = structlog.get_logger()


class BatchRunner:
    """One worker with its three threads: the engine's, the result writer's and the lease heartbeat's."""

    def __init__(
        self,
        database: Database,
        served: ServedModel,
        terms: LeaseTerms,
        renewals: Database,
        kick_planner: Callable[[], None],
        on_broken: Callable[[str], None],
        live_rows: LiveRows,
        salt_key: str = "",
        on_wanted: Callable[[str], None] = lambda model: None,
    ) -> None:
        """Makes the engine and the threads; nothing runs before `start`.

        `on_wanted` is called with the model that the planner wants instead, at each heartbeat.

        `renewals` has a connection for the leases' renewals alone, with autocommit.
        `salt_key` is the key of the tenants' cache salts: the same for all workers, and unknown to tenants.
        """
        self._database, self._served, self._terms, self._salt_key = database, served, terms, salt_key
        self._facts, self._kick_planner = served.facts, kick_planner
        self._jobs = OpenJobs()
        self._leaving: Thread | None = None
        self._writer = ResultWriter(
            database, served.prompt_format, served.facts.fingerprints, self._jobs.close, on_written=kick_planner
        )
        self._engine = EngineThread(served.make_engine, self._writer.record, live_rows)
        self._heartbeat = LeaseHeartbeat(
            database, renewals, self._engine, self._writer, self._jobs, served, terms, on_broken, on_wanted
        )

    def start(self) -> None:
        """Announce the worker, so that the planner sends it batches, and start the threads."""
        self._heartbeat.announce()
        for thread in (self._writer, self._engine, self._heartbeat):
            thread.start()
        self._kick_planner()

    def serve(self, batch_id: int) -> None:
        """Serves a batch and returns once it is closed; does nothing if the worker cannot take the batch."""
        if self._heartbeat.leaves:  # the planner sent the batch before it knew that the worker leaves
            return
        with self._database.begin() as connection:
            batch = leases.take_batch(
                connection, batch_id, self._facts.name, self._terms.lease_s, self._facts.fingerprints
            )
            served_again = batch is None and leases.prove_consuming(connection, self._facts.name)
        if batch is None:
            log.info("batch not taken", batch=batch_id)
            if served_again:
                log.info("messages arrive again")
                self._kick_planner()
            return
        if any(one.model != self._facts.model for one in batch.prompts):  # assigned before the model was changed
            self._writer.record(BatchEnded(batch.lease, BatchStatus.lost, monotonic()))
            return
        try:
            job = prepare(
                batch,
                self._served.prompt_format,
                self._engine.max_positions,
                self._facts.lacks,
                self._salt_key,
                self._served.prepare_format,
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

    def drain(self, within_s: float, running_on_s: float = 0.0) -> None:
        """Begins to leave: in `within_s` seconds all work has been given back and the worker is deregistered.

        Running rows go back with their tokens after `running_on_s` seconds. Returns at once.
        """
        if self._leaving is None:
            until = monotonic() + within_s
            self._engine.stop(running_on_s)
            self._leaving = Thread(target=self._leave, args=(until, within_s * WRITING_SHARE), name="leaving")
            self._leaving.daemon = True
            self._leaving.start()

    def leave_model(self, running_on_s: float) -> None:
        """Gives all work back, running rows after `running_on_s` s, and ends the threads; stays registered."""
        self._heartbeat.stays_registered = True
        self.drain(running_on_s + STOP_WITHIN_S, running_on_s)
        self.stop()

    def stop(self) -> None:
        """Begins to leave, unless the worker is leaving already; returns once all work has been given back."""
        self.drain(STOP_WITHIN_S)
        if self._leaving is not None:
            self._leaving.join()

    @property
    def late(self) -> bool:
        """Whether the engine's thread was left in the middle of a step."""
        return self._engine.is_alive()

    def _leave(self, until: float, writing_s: float) -> None:
        self._engine.join(max(0.0, until - writing_s - monotonic()))
        if self._engine.is_alive():
            log.warning("step not awaited")
            self._engine.give_back_late()
        for job in self._jobs.by_lease().values():
            job.closed.wait(max(0.0, until - monotonic()))
        self._writer.stop(max(0.0, until - monotonic()))
        self._jobs.close_all()
        self._heartbeat.stop()
        try:
            self._heartbeat.deregister(failed=False)
        except SQLAlchemyError as error:  # its leases end by themselves
            log.error("worker not deregistered", error=str(error))
