"""Writes what the engine's thread says, so that the engine never waits for the database.

What is said while it rests after a write is written together, in one transaction, under the leases that still stand;
what was said under a lost lease is dropped. While the database is away it waits and tries again.
"""

from collections.abc import Callable, Collection, Sequence
from queue import SimpleQueue
from threading import Event as Flag
from threading import Thread
from time import monotonic

import structlog
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError

from inference.stop_strings import cut_at_stop
from models import batch_results
from models.batch_results import Answer, Closed, Returned, Started
from models.leases import Lease, lock_held
from models.tables import BatchStatus, RequestStatus
from tasks.serving.engine_events import BatchBegan, BatchEnded, Event, RowEnded, RowFailed, RowReturned

RETRY_S = 0.5
REST_S = 0.02  # between two writes: what is said meanwhile is written together

log = structlog.get_logger()


class ResultWriter(Thread):
    """A thread with a connection of its own; `say` may be called from any thread."""

    def __init__(
        self,
        database: Engine,
        decode: Callable[[Sequence[int]], str],
        max_attempts: int,
        on_closed: Callable[[Collection[Lease]], None],
        on_written: Callable[[], None],
    ) -> None:
        """`on_closed` hears which batches are over, written or lost; `on_written` is called after each write."""
        super().__init__(name="recorder", daemon=True)
        self._database, self._decode, self._max_attempts = database, decode, max_attempts
        self._on_closed, self._on_written = on_closed, on_written
        self._said: SimpleQueue[Event | None] = SimpleQueue()
        self._stopping = Flag()

    def say(self, event: Event) -> None:
        """Have this written soon."""
        self._said.put(event)

    def stop(self, within_s: float) -> None:
        """Write what was said and end; what the database does not take within that time is lost."""
        self._stopping.set()
        self._said.put(None)
        self.join(within_s)

    def run(self) -> None:
        """Write until stopped."""
        while True:
            events = [self._said.get()]
            while not self._said.empty():
                events.append(self._said.get())
            said = [event for event in events if event is not None]
            if said:
                self._record(said)
            if None in events:
                return
            self._stopping.wait(REST_S)

    def _record(self, events: Sequence[Event]) -> None:
        """Write, once the database is there; events that it refuses cost their own batch only."""
        try:
            self._write_patiently(events)
        except SQLAlchemyError:
            log.exception("write refused")
            for lease in {event.lease for event in events}:
                self._record_alone(lease, [event for event in events if event.lease == lease])
        self._on_closed({event.lease for event in events if isinstance(event, BatchEnded)})
        self._on_written()

    def _record_alone(self, lease: Lease, events: Sequence[Event]) -> None:
        try:
            self._write_patiently(events)
        except SQLAlchemyError:
            log.exception("batch given up", batch=lease.batch_id)
            self._write_patiently([BatchEnded(lease, BatchStatus.lost, monotonic(), counts_as_attempt=True)])
            self._on_closed({lease})

    def _write_patiently(self, events: Sequence[Event]) -> None:
        while True:
            try:
                return self._write(events)
            except DBAPIError as error:
                if not (isinstance(error, OperationalError) or error.connection_invalidated):
                    raise
                log.warning("database away", error=str(error.orig))
                if self._stopping.wait(RETRY_S):
                    log.error("answers lost", batches=sorted({event.lease.batch_id for event in events}))
                    return None

    def _write(self, events: Sequence[Event]) -> None:
        now = monotonic()
        with self._database.begin() as connection:
            standing = lock_held(connection, {event.lease for event in events})
            events = [event for event in events if event.lease in standing]
            started = [Started(e.lease, now - e.at) for e in events if isinstance(e, BatchBegan)]
            answers = [self._answer(e, now) for e in events if isinstance(e, RowEnded | RowFailed)]
            returned = [Returned(e.lease, e.request_id, e.generated_ids) for e in events if isinstance(e, RowReturned)]
            closed = [
                Closed(e.lease, e.status, now - e.at, e.figures, e.counts_as_attempt)
                for e in events
                if isinstance(e, BatchEnded)
            ]
            if started:
                batch_results.write_started(connection, started)
            if answers:
                batch_results.write_answers(connection, answers)
            if returned:
                batch_results.write_returned(connection, returned)
            if closed:
                batch_results.write_closed(connection, closed, self._max_attempts)

    def _answer(self, event: RowEnded | RowFailed, now: float) -> Answer:
        if isinstance(event, RowFailed):
            error = {"code": event.code, "message": event.message}
            return Answer(event.lease, event.request_id, RequestStatus.failed, None, 0, None, now - event.at, error)
        ended = event.ended
        text = cut_at_stop(self._decode(ended.generated_ids), event.stop)
        return Answer(
            lease=event.lease,
            request_id=ended.id,
            status=STATUS_OF_REASON[ended.reason],
            text=text,
            tokens=len(ended.generated_ids),
            reason=ended.reason,
            ago_s=now - event.at,
        )


STATUS_OF_REASON = {
    "eos": RequestStatus.completed,
    "stop": RequestStatus.completed,
    "limit": RequestStatus.incomplete,
    "removed": RequestStatus.cancelled,
}
