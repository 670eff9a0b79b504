"""Turns the lines of bulk jobs into queued requests, as far as the limits of their tenants' queues allow.

A step reads some lines of one job, checks them as the API checks calls, and stores their requests in one transaction.
Any number of these may run, on several hosts. If a step does not end, because a line's check ended the process, other
jobs come first, the job's next steps read fewer lines, and a line that alone ended three steps is refused.

Reading takes CPU time of the service, so it pauses while other requests are served and enough lines are queued.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import monotonic

import structlog
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DataError, IntegrityError
from sqlalchemy.orm import Session

from inference.engine_errors import TokenizerAway
from models import notifications
from models.bulk import bulk_feed
from models.bulk.bulk_feed import ClaimedJob, NewLine
from models.new_requests import NewRequest
from models.planning.live_fleet import served_adapters
from models.planning.queue_snapshot import read_queue_snapshot
from models.tenants import tenant_limits
from webapp.bulk.request_lines import LineReader, duplicate, lost, unreadable
from webapp.limits.prompt_limits import PromptLimits

# Most lines of a step, and the requests after which it ends. More lock the job's row for longer, so that a cancel
# waits; fewer cost more statements a line. With 500 a step takes some 0.3 s. Not tuned.
LINES_AT_ONCE = 500
# A step ends after the line that it reads then. Checking a line takes at most 0.3 s of CPU time for its schema and some
# seconds for the longest prompt, so that 500 of them would hold the job's row for minutes. Not tuned otherwise.
READ_FOR_S = 2.0
# The most steps that begin at the same line. After three that did not end, a step reads this line alone, and three such
# steps are tried, because a process may end for other reasons.
MOST_TRIES = 6
# The share of a tenant's queue limit that its bulk jobs may take, so that its other calls are not refused. Half of the
# default holds two whole batches. Not tuned.
QUEUE_SHARE = 0.5
# Reading pauses for this time after other requests were last seen. A step sees only the requests that run at its
# instant, which may be few and short. Not tuned.
OTHERS_FOR_S = 10.0

log = structlog.get_logger()


@dataclass
class QueueBudget:
    """The requests and tokens that a tenant's bulk jobs may still queue."""

    requests: float
    tokens: float
    queued: int = 0  # the tenant's queued requests
    empty: bool = False  # the tenant has nothing queued: one line goes in, however small the limits are
    full: bool = False  # a line did not fit

    def takes(self, requests: Sequence[NewRequest]) -> bool:
        """Whether the requests of one more line fit; counts them if they do."""
        tokens = sum(request.prompt_tokens for request in requests)
        self.full = not self.empty and (self.requests < len(requests) or self.tokens < tokens)
        if self.full:
            return False
        self.requests -= len(requests)
        self.tokens -= tokens
        self.queued += len(requests)
        self.empty = False
        return True


class LineFeeder:
    """Feeds the lines of the job that waits longest."""

    def __init__(
        self, engine: Engine, limits: Callable[[], PromptLimits], *, max_requests: int, max_tokens: int
    ) -> None:
        """`limits` loads the tokenizer when the first line is read; the others limit a tenant's queue."""
        self._engine, self._limits = engine, limits
        self._max_requests, self._max_tokens = max_requests, max_tokens
        self._others_at = -math.inf  # when others were last seen

    def feed(self, for_s: float) -> int:
        """Read lines for `for_s` seconds, or until none can be read or others need the time; returns their number."""
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
        """Returns whether others were served lately, and each tenant has a step's lines queued."""
        if any(budget.queued < LINES_AT_ONCE for budget in budgets):
            return False
        with self._engine.begin() as connection:
            if bulk_feed.others_are_served(connection):
                self._others_at = monotonic()
        return monotonic() - self._others_at < OTHERS_FOR_S

    def _step(self, budgets: dict[str, QueueBudget], full: Collection[str]) -> int | None:
        """Read some lines of the job that waits longest; returns their number, None if no job can be read."""
        with self._engine.begin() as connection:
            job_id = bulk_feed.begin_step(connection, full)
        if job_id is None:
            return None
        try:
            with self._engine.begin() as connection:
                job = bulk_feed.claim_job(connection, job_id)
                return 0 if job is None else self._feed(connection, job, budgets)  # None: cancelled meanwhile
        except TokenizerAway:
            with self._engine.begin() as connection:
                bulk_feed.end_step(connection, job_id, LINES_AT_ONCE)
            raise

    def _feed(self, connection: Connection, job: ClaimedJob, budgets: dict[str, QueueBudget]) -> int:
        """Read some lines of a claimed job; returns their number."""
        if job.tenant not in budgets:
            budgets[job.tenant] = self._budget(connection, job.tenant)
        budget = budgets[job.tenant]
        if job.tries > MOST_TRIES:
            log.error("line refused: each step that read it did not end", job=job.id, line=job.next_line)
            bulk_feed.write_lines(connection, job, [unreadable(job.next_line)], job.next_line + 1)
            bulk_feed.end_step(connection, job.id, LINES_AT_ONCE)
            return 1
        session = Session(connection)
        adapters = served_adapters(session)  # read here, since the transaction has the only connection
        limits = replace(self._limits(), all_adapters=lambda: adapters)
        reader = LineReader(job.endpoint, job.tenant, limits, read_queue_snapshot(session))
        try:
            with connection.begin_nested():
                read = feed_some(connection, job, reader, budget)
        except (DataError, IntegrityError) as error:  # a bug of ours: the step has not ended, the line will be found
            log.error("lines not stored", job=job.id, line=job.next_line, error=str(error))
            budget.full = True
            return 0
        bulk_feed.end_step(connection, job.id, LINES_AT_ONCE)
        return read

    def _budget(self, connection: Connection, tenant: str) -> QueueBudget:
        session = Session(connection)
        backlog, own = tenant_limits.read_backlog(session, tenant), tenant_limits.limits_of(session, tenant)
        requests = self._max_requests if own.queued_requests is None else own.queued_requests
        tokens = self._max_tokens if own.queued_tokens is None else own.queued_tokens
        return QueueBudget(
            QUEUE_SHARE * requests - backlog.requests,
            QUEUE_SHARE * tokens - backlog.tokens,
            queued=backlog.requests,
            empty=not backlog.requests,
        )


def feed_some(connection: Connection, job: ClaimedJob, reader: LineReader, budget: QueueBudget) -> int:
    """Read the next lines of a claimed job and store their requests up to the limits; returns their number."""
    most = max(1, min(job.step_lines, int(budget.requests)))  # further lines could not be queued
    lines: dict[int, NewLine | None] = {}
    until = monotonic() + READ_FOR_S
    for number, data in lines_of(job, most):
        if data is None:
            lines[number] = lost(number)
        else:
            lines[number] = reader.read(number, data) if data.strip() else None
        if monotonic() > until or sum(len(line.requests) for line in lines.values() if line) >= LINES_AT_ONCE:
            break
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


def lines_of(job: ClaimedJob, most: int) -> Iterator[tuple[int, bytes | None]]:
    """Yields the next lines of a job's chunk with their numbers; None for a line that the chunk lacks."""
    lines = dict(enumerate(job.data.removesuffix(b"\n").split(b"\n"), job.first_line))
    for number in range(job.next_line, min(job.next_line + most, job.chunk_end + 1)):
        yield number, lines.get(number)
