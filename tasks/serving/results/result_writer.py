"""Writes the engine's events to the database, in a thread of its own, so that the engine never waits for the database.

Events that arrive within one interval are written together, in one transaction. Events of a batch whose lease is lost
are dropped. While the database is away, or its tables or rights do not fit, the thread tries again and nothing is lost.
An answer that the database does not take fails by name; the others are written.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from queue import SimpleQueue
from threading import Event, Thread
from time import monotonic

import structlog
from sqlalchemy import Engine as Database
from sqlalchemy.exc import SQLAlchemyError
from tenacity import (
    RetryCallState,
    RetryError,
    Retrying,
    retry_if_exception,
    sleep_using_event,
    stop_when_event_set,
    wait_fixed,
)

from inference.engine_errors import TokenizerAway
from inference.prompts.request_tokens import RequestTokens
from models import notifications
from models.connections.database_errors import is_away, is_unfit
from models.leasing import batch_results
from models.leasing.batch_results import BatchBegan, BatchEnded, RowReturned
from models.leasing.leases import Lease, lock_held
from models.tables import BatchStatus
from tasks.serving.results.answers import packed, stored_answer
from tasks.serving.results.engine_events import EngineEvent, RowEnded, RowFailed

# Seconds between two tries while the database is unreachable. A shorter time only writes more log lines; a longer one
# delays answers once the database is back. Not tuned.
RETRY_S = 0.5
# Seconds between two writes. Together with the planner's JOINING_INTERVAL_S, this lowered the CPU time of a request
# from 2.2 to 1.7 ms in Postgres and from 9.2 to 7.4 ms in the workers (commit ccd7735).
WRITE_INTERVAL_S = 0.02
NOT_STORED = "answer_not_stored"  # the code of a request whose answer the database does not take

log = structlog.get_logger()


def _log_that_database_takes_nothing(tried: RetryCallState) -> None:
    error = tried.outcome and tried.outcome.exception()
    log.warning("database takes no answers now", error=str(getattr(error, "orig", error)))


class ResultWriter(Thread):
    """Writes the recorded events in a thread with its own connection; any thread may call `record`."""

    def __init__(
        self,
        database: Database,
        tokens: RequestTokens,
        fingerprints: Mapping[str, str],
        on_closed: Callable[[Collection[Lease]], None],
        on_written: Callable[[], None],
    ) -> None:
        """`fingerprints` are those of what generates the worker's tokens, by the model that requests name.

        `on_closed` gets the leases of ended batches; `on_written` is called after each write but those of starts.
        """
        super().__init__(name="result writer", daemon=True)
        self._database, self._tokens, self._fingerprints = database, tokens, fingerprints
        self._on_closed, self._on_written = on_closed, on_written
        self._events: SimpleQueue[tuple[EngineEvent, ...]] = SimpleQueue()  # an empty tuple stops the thread
        self._stopping = Event()
        self._retrying = Retrying(
            retry=retry_if_exception(lambda error: is_away(error) or is_unfit(error)),
            wait=wait_fixed(RETRY_S),
            stop=stop_when_event_set(self._stopping),
            sleep=sleep_using_event(self._stopping),
            before_sleep=_log_that_database_takes_nothing,
        )

    def record(self, *events: EngineEvent) -> None:
        """Hands over events; the thread writes them soon and together, after the events recorded before."""
        self._events.put(events)

    def stop(self, within_s: float) -> None:
        """Writes all events and ends the thread; events that the database does not take in `within_s` s are lost."""
        self._stopping.set()
        self._events.put(())
        self.join(within_s)

    def run(self) -> None:
        """Write the queued events until stopped."""
        while True:
            taken = [self._events.get()]
            while not self._events.empty():
                taken.append(self._events.get())
            events = [event for together in taken for event in together]
            if events:
                self._write_and_close(events)
            if () in taken:
                return
            self._stopping.wait(WRITE_INTERVAL_S)

    def _write_and_close(self, events: Sequence[EngineEvent]) -> None:
        """Writes all events together; if the database refuses them, writes each batch's alone, and then each event."""
        try:
            awaited = self._write_with_retries(events)
        except Exception:  # an error of one batch must not end the thread
            log.exception("write refused")
            for lease in {event.lease for event in events}:
                self._write_one_batch(lease, [event for event in events if event.lease == lease])
            awaited = True
        self._on_closed({event.lease for event in events if isinstance(event, BatchEnded)})
        if not all(isinstance(event, BatchBegan) for event in events):
            self._on_written()
        if awaited:
            self._notify_waiting_calls(events)

    def _notify_waiting_calls(self, events: Sequence[EngineEvent]) -> None:
        """Wakes the calls that wait for these requests; calls that are not woken check once a second."""
        ended = [event.ended.id for event in events if isinstance(event, RowEnded)]
        ended += [one.request_id for one in events if isinstance(one, RowFailed)]
        ended += [one.request_id for one in events if isinstance(one, RowReturned) and one.blamed]
        if not ended:
            return
        try:
            with self._database.begin() as connection:
                notifications.notify_ended(connection, ended)
        except SQLAlchemyError as error:
            log.warning("waiting calls not notified", error=str(error))

    def _write_one_batch(self, lease: Lease, events: Sequence[EngineEvent]) -> None:
        """Writes one batch's events; if the database refuses them, writes each event alone."""
        try:
            self._write_with_retries(events)
        except TokenizerAway as error:  # no fault of a request: the batch runs again
            log.warning("batch not written", batch=lease.batch_id, error=str(error))
            self._write_alone(BatchEnded(lease, BatchStatus.lost, monotonic()))
            self._on_closed({lease})
        except Exception:
            for event in events:
                self._write_alone(event)

    def _write_alone(self, event: EngineEvent) -> None:
        """Write one event; a request whose event the database refuses fails by name."""
        try:
            self._write_with_retries([event])
        except Exception as error:  # an error of one event must not keep the others from being written
            log.exception("event not written", batch=event.lease.batch_id, kind=type(event).__name__)
            request_id = event.ended.id if isinstance(event, RowEnded) else getattr(event, "request_id", None)
            if request_id is not None and not isinstance(event, RowFailed):
                said = f"The answer was generated and could not be stored ({type(error).__name__})."
                self._write_alone(RowFailed(event.lease, request_id, NOT_STORED, said, monotonic()))

    def _write_with_retries(self, events: Sequence[EngineEvent]) -> bool:
        """Writes once the database takes it, or gives up when stopping; returns whether API calls wait for answers."""
        try:
            return bool(self._retrying(self._write, events))
        except RetryError:
            log.error("answers lost", batches=sorted({event.lease.batch_id for event in events}))
            return False

    def _write(self, events: Sequence[EngineEvent]) -> bool:
        now = monotonic()
        with self._database.begin() as connection:
            durable = not all(isinstance(event, BatchBegan) for event in events)  # starts are only shown, never needed
            held = lock_held(connection, {event.lease for event in events}, durable=durable)
            events = [event for event in events if event.lease in held.leases]
            started = [e for e in events if isinstance(e, BatchBegan)]
            answers = [stored_answer(e, now, self._tokens) for e in events if isinstance(e, RowEnded | RowFailed)]
            returned = [replace(e, logprobs=packed(e.logprobs)) for e in events if isinstance(e, RowReturned)]
            closed = [e for e in events if isinstance(e, BatchEnded)]
            if started:
                batch_results.write_started(connection, started, now)
            if answers:
                batch_results.write_answers(connection, answers)
            if returned:
                batch_results.write_returned(connection, returned, now, self._fingerprints)
            if closed:
                batch_results.write_closed(connection, closed, now)
        return held.awaited
