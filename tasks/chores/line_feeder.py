"""Turns the lines of bulk jobs into queued requests, as far as the limits of their tenants' queues allow.

A step reads some lines of one job, checks them as the API checks calls, and stores their requests in one transaction.
While it checks lines it holds neither a connection nor a lock. Any number of feeders may run, on several hosts.
If a step does not end, because the check of a line killed the process, other jobs come first and the job's next steps
read fewer lines. A line that killed three steps which read it alone is refused.

Reading takes CPU time of the service, so it pauses while other requests are served and enough lines are queued.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic

import structlog
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DataError, IntegrityError
from sqlalchemy.orm import Session

from inference.engine_errors import TokenizerAway
from models import notifications
from models.bulk import bulk_feed
from models.bulk.bulk_feed import JobStep, NewLine
from models.connections.session import in_transaction
from models.new_requests import NewRequest
from models.planning.live_fleet import served_adapters
from models.planning.queue_snapshot import read_queue_snapshot
from models.tenants import tenant_limits
from protocol.bulk.request_lines import LineReader, duplicate, lost, unreadable
from protocol.limits.prompt_limits import PromptLimits

# A step reads at most this many lines, and ends after this many requests or bytes. Larger steps lock the job's row for
# longer, so that a cancel waits; smaller ones cost more statements a line. With 500 a step takes some 0.3 s. Not tuned.
LINES_AT_ONCE, STEP_BYTES = 500, 2**24
# A step also ends after the line with which it exceeds this time. A line's check takes up to 0.3 s of CPU time for its
# schema and some seconds for the longest prompt: 500 could take longer than the job is held. Not tuned otherwise.
READ_FOR_S = 2.0
# At most this many steps begin at the same line. After three that did not end, a step reads this line alone. Three such
# steps are tried, because a process may end for other reasons.
MOST_TRIES = 6
# The share of a tenant's queue limit that its bulk jobs may take, so that its other calls are not refused. Half of the
# default holds two whole batches. Not tuned.
QUEUE_SHARE = 0.5
# Reading pauses for this long after other requests were last seen. One look at the running requests is not enough,
# because they may be few and short. Not tuned.
OTHERS_FOR_S = 10.0

Lines = Mapping[int, NewLine | None]
log = structlog.get_logger()


@dataclass
class QueueBudget:
    """The requests, tokens and bytes that a tenant's bulk jobs may still queue."""

    requests: float
    tokens: float
    bytes: float
    queued: int = 0  # the tenant's queued requests
    empty: bool = False  # whether the tenant has nothing queued; then one line fits, however small the limits are
    full: bool = False  # whether a line did not fit

    def takes(self, requests: Sequence[NewRequest]) -> bool:
        """Whether the requests of one more line fit; counts them if they do."""
        tokens = sum(request.prompt_tokens for request in requests)
        size_bytes = sum(request.size_bytes for request in requests)
        fits = len(requests) <= self.requests and tokens <= self.tokens and size_bytes <= self.bytes
        self.full = not (fits or self.empty)
        if self.full:
            return False
        self.requests -= len(requests)
        self.tokens -= tokens
        self.bytes -= size_bytes
        self.queued += len(requests)
        self.empty = False
        return True


class LineFeeder:
    """Queues the lines of bulk jobs, those of the job that has waited longest first."""

    def __init__(
        self, engine: Engine, limits: Callable[[], PromptLimits], *, max_requests: int, max_tokens: int, max_bytes: int
    ) -> None:
        """`limits` loads the tokenizer when the first line is read; the other parameters limit a tenant's queue."""
        self._engine, self._limits = engine, limits
        self._max_requests, self._max_tokens, self._max_bytes = max_requests, max_tokens, max_bytes
        self._others_at = -math.inf  # when other requests were last seen

    def feed(self, for_s: float) -> int:
        """Reads lines for `for_s` s, or until no line can be read or other requests need the CPU; returns how many."""
        until, total = monotonic() + for_s, 0
        budgets: dict[str, QueueBudget] = {}
        while monotonic() < until:
            full = [tenant for tenant, budget in budgets.items() if budget.full]
            try:
                read = self._step(budgets, full)
            except TokenizerAway as error:
                log.warning("lines not read", error=str(error))
                break
            if read is None:
                break
            total += read
            if self._leaves_time(budgets.values()):
                break
        if total:
            with self._engine.begin() as connection, Session(connection) as session:
                notifications.notify_submitted(session.connection())
        return total

    def _leaves_time(self, budgets: Iterable[QueueBudget]) -> bool:
        """Returns whether other requests were served lately, and each tenant has enough lines queued for a step."""
        if any(budget.queued < LINES_AT_ONCE for budget in budgets):
            return False
        if in_transaction(self._engine, bulk_feed.others_are_served)():
            self._others_at = monotonic()
        return monotonic() - self._others_at < OTHERS_FOR_S

    def _step(self, budgets: dict[str, QueueBudget], full: Collection[str]) -> int | None:
        """Reads some lines of the job that has waited longest; returns how many, or None if no job can be read."""
        job_id = in_transaction(self._engine, bulk_feed.begin_step)(full)
        if job_id is None:
            return None
        try:
            with self._engine.begin() as connection, Session(connection) as session:
                job = bulk_feed.read_step(connection, job_id)
                if job is None:
                    return 0  # cancelled meanwhile
                if job.tenant not in budgets:
                    budgets[job.tenant] = self._budget(session, job.tenant)
                adapters, snapshot = served_adapters(session), read_queue_snapshot(session)
            limits = replace(self._limits(), all_adapters=lambda: adapters)
            lines = read_some(job, LineReader(job.endpoint, job.tenant, limits, snapshot), budgets[job.tenant])
        except TokenizerAway:
            in_transaction(self._engine, bulk_feed.end_step)(job_id, LINES_AT_ONCE)
            raise
        return self._store(job, lines, budgets[job.tenant])

    def _store(self, job: JobStep, lines: Lines, budget: QueueBudget) -> int:
        """Store the lines that were read, unless the job has changed since; returns their number."""
        try:
            with self._engine.begin() as connection:
                locked = bulk_feed.lock_step(connection, job)
                # no line is stored if the job was stopped, or if another process has stored its lines
                stored = 0 if locked is None else store_some(connection, locked, lines, budget)
                bulk_feed.end_step(connection, job.id, LINES_AT_ONCE)
                return stored
        except (DataError, IntegrityError) as error:  # our bug; the step counts as not ended, so the line will be found
            log.error("lines not stored", job=job.id, line=job.next_line, error=str(error))
            budget.full = True
            return 0

    def _budget(self, session: Session, tenant: str) -> QueueBudget:
        backlog, own = tenant_limits.read_backlog(session, tenant), tenant_limits.limits_of(session, tenant)
        requests = self._max_requests if own.queued_requests is None else own.queued_requests
        tokens = self._max_tokens if own.queued_tokens is None else own.queued_tokens
        return QueueBudget(
            QUEUE_SHARE * requests - backlog.requests,
            QUEUE_SHARE * tokens - backlog.tokens,
            QUEUE_SHARE * self._max_bytes - backlog.bytes,
            queued=backlog.requests,
            empty=not backlog.requests,
        )


def read_some(job: JobStep, reader: LineReader, budget: QueueBudget) -> Lines:
    """Returns the next lines of a job by their numbers, None for a blank line; holds no connection meanwhile."""
    if job.tries > MOST_TRIES:
        log.error("line refused: each step that read it did not end", job=job.id, line=job.next_line)
        return {job.next_line: unreadable(job.next_line)}
    most = max(1, min(job.step_lines, int(budget.requests)))  # further lines could not be queued
    lines: dict[int, NewLine | None] = {}
    requests = size_bytes = 0
    until = monotonic() + READ_FOR_S
    for number, data in lines_of(job, most):
        if data is None:
            lines[number] = lost(number)
        elif data.strip():
            lines[number] = read = reader.read(number, data)
            requests += len(read.requests)
            size_bytes += sum(one.size_bytes for one in read.requests)
        else:
            lines[number] = None
        if monotonic() > until or requests >= LINES_AT_ONCE or size_bytes >= STEP_BYTES:
            break
    return lines


def store_some(connection: Connection, job: JobStep, lines: Lines, budget: QueueBudget) -> int:
    """Stores these lines with their requests until one exceeds the budget; returns the number of lines."""
    named = [line.custom_id for line in lines.values() if line and line.requests and line.custom_id]
    taken = bulk_feed.taken_names(connection, job.id, named)
    stored: list[NewLine] = []
    next_line = job.next_line
    for number, line in lines.items():
        if line is not None:
            if line.requests and line.custom_id in taken:
                line = duplicate(line)
            if line.requests and not budget.takes(line.requests):
                break
            if line.requests and line.custom_id:
                taken.add(line.custom_id)
            stored.append(line)
        next_line = number + 1
    if next_line > job.next_line:
        bulk_feed.write_lines(connection, job, stored, next_line)
    return next_line - job.next_line


def lines_of(job: JobStep, most: int) -> Iterator[tuple[int, bytes | None]]:
    """Yields the next lines of a job's chunk with their numbers; None for a line that the chunk lacks."""
    lines = dict(enumerate(job.data.removesuffix(b"\n").split(b"\n"), job.first_line))
    for number in range(job.next_line, min(job.next_line + most, job.chunk_end + 1)):
        yield number, lines.get(number)
