"""Turns the lines of bulk jobs into queued requests, as far as their tenants' queues have room.

A step reads some lines of one job, by the very checks of the call that they make, and stores what came of them in one
transaction. Any number of these may run, on several hosts.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import monotonic

import structlog
from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session

from inference.request_tokens import TokenizerAway
from models import notifications, tenant_backlog
from models.bulk import bulk_feed
from models.bulk.bulk_feed import ClaimedJob, NewLine
from models.client_requests import NewRequest
from models.queue_position import read_queue_snapshot
from webapp.bulk.request_lines import LineReader, duplicate
from webapp.prompt_limits import PromptLimits

# Lines of one transaction. More hold the job's row for longer, so that a cancel waits; fewer cost more statements a
# line. With 500 a step takes some 0.3 s. Not tuned.
LINES_AT_ONCE = 500
# Of a tenant's place in the queue, what its bulk jobs may take: the rest is for its other calls, which would be
# refused. Half of the default holds two whole batches. Not tuned.
QUEUE_SHARE = 0.5

log = structlog.get_logger()


@dataclass
class Room:
    """What a tenant's bulk jobs may still put into the queue."""

    requests: float
    tokens: float

    def takes(self, request: NewRequest) -> bool:
        """Whether one more request fits; if it does, it is counted."""
        if self.requests < 1 or self.tokens < request.prompt_tokens:
            return False
        self.requests -= 1
        self.tokens -= request.prompt_tokens
        return True


class LineFeeder:
    """Feeds the lines of whichever job waits longest."""

    def __init__(
        self, engine: Engine, limits: Callable[[], PromptLimits], *, max_requests: int, max_tokens: int
    ) -> None:
        """`limits` loads the tokenizer when the first line is read; the others are the limits of a tenant's queue."""
        self._engine, self._limits = engine, limits
        self._max_requests, self._max_tokens = max_requests, max_tokens

    def feed(self, for_s: float) -> int:
        """Read lines until none can be read any more, or for so many seconds; returns how many were read."""
        until, rooms, total = monotonic() + for_s, dict[str, Room](), 0
        full: set[str] = set()
        while monotonic() < until:
            with self._engine.begin() as connection:
                job = bulk_feed.claim_job(connection, full)
                if job is None:
                    break
                if job.tenant not in rooms:
                    rooms[job.tenant] = self._room(connection, job.tenant)
                try:
                    read = self._step(connection, job, rooms[job.tenant])
                except TokenizerAway as error:
                    log.warning("lines not read", job=job.id, error=str(error))
                    break
            total += read
            if not read:
                full.add(job.tenant)
            with self._engine.begin() as connection, Session(connection) as session:
                notifications.notify_submitted(session)
        return total

    def _room(self, connection: Connection, tenant: str) -> Room:
        backlog = tenant_backlog.backlog_of(Session(connection), tenant)
        if not backlog.requests:  # then one line goes in, however small the limits are
            return Room(max(1.0, QUEUE_SHARE * self._max_requests), self._max_tokens)
        return Room(
            QUEUE_SHARE * self._max_requests - backlog.requests, QUEUE_SHARE * self._max_tokens - backlog.tokens
        )

    def _step(self, connection: Connection, job: ClaimedJob, room: Room) -> int:
        """Read and store some lines; returns how many."""
        reader = LineReader(job.endpoint, job.tenant, self._limits(), read_queue_snapshot(Session(connection)))
        lines = {number: reader.read(number, data) if data.strip() else None for number, data in lines_of(job)}
        named = [line.custom_id for line in lines.values() if line and line.request and line.custom_id]
        taken = bulk_feed.taken_names(connection, job.id, named)
        stored: list[NewLine] = []
        next_line = job.next_line
        for number, line in lines.items():
            if line is not None:
                if line.request and line.custom_id in taken:
                    line = duplicate(line)
                if line.request and not room.takes(line.request):
                    break
                if line.request and line.custom_id:
                    taken.add(line.custom_id)
                stored.append(line)
            next_line = number + 1
        if next_line > job.next_line:
            bulk_feed.write_lines(connection, job, stored, next_line)
        return next_line - job.next_line


def lines_of(job: ClaimedJob) -> Iterator[tuple[int, bytes]]:
    """The next lines of a job's chunk with their numbers, LINES_AT_ONCE at most."""
    lines = job.data.removesuffix(b"\n").split(b"\n")
    first = job.next_line - job.first_line
    yield from enumerate(lines[first : first + LINES_AT_ONCE], job.next_line)
