"""Limits the requests that one tenant may have in the queue, the tokens of their prompts, and their bytes.

Counting 100,000 rows in each call that submits would take too long. So a thread counts a tenant's rows at most once a
second, and between two counts a process adds the requests that it admits itself. One process never exceeds a limit;
several processes exceed it at most by what they admit within that second. If the last count would refuse a call, the
call waits for a new count, because its client may have come back after the time that it was given.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import structlog
from sqlalchemy.exc import SQLAlchemyError

from models.planning.queue_snapshot import QueueSnapshot
from models.tenants.tenant_limits import NO_LIMITS, NOTHING, TenantBacklog, TenantLimits
from protocol.client_errors import BacklogFull

log = structlog.get_logger()

COUNT_EVERY_S = 1.0  # a longer interval costs fewer statements and lets a limit be exceeded further; not tuned
COUNTING_SHARE = 0.05  # share of one connection's time that may go into counting one tenant's rows; not tuned
# A tenant whose queue is full is asked to come back once this share of it is served. If it came back for the next free
# place, all of its clients would race for that place. Not tuned.
SHARE_TO_WAIT_FOR = 0.1
RETRY_UNKNOWN_S = 5  # seconds to wait while no planner predicts how long the queue takes; not tuned
LONGEST_RETRY_S = 120  # OpenAI's clients honour Retry-After up to 120 s


# The words in which the error names the limit that a tenant's queue would exceed.
LIMITS = {
    "requests": "{:,} of your requests are queued",
    "tokens": "The prompts of your queued requests have {:,} tokens",
    "bytes": "Your queued requests have {:,} bytes",
}


@dataclass
class TenantCount:
    """A tenant's rows at the last count, and what this process has admitted and stored since."""

    counted: TenantBacklog = NOTHING
    admitted: TenantBacklog = NOTHING  # requests admitted and not stored yet, so that no count has them
    stored: TenantBacklog = NOTHING  # requests stored since the last count began
    next_count_at: float = 0.0
    counting: bool = False
    first_count: threading.Event = field(default_factory=threading.Event)

    @property
    def all(self) -> TenantBacklog:
        """Returns the tenant's requests in the queue, as far as this process knows, and their tokens."""
        return self.counted + self.admitted + self.stored

    def exceeded(self, one: TenantBacklog, most: TenantBacklog) -> str | None:
        """Returns the name of the limit that one more request would exceed, or None if it fits."""
        then = self.all + one
        return next((name for name in LIMITS if getattr(then, name) > getattr(most, name)), None)


@dataclass(frozen=True, slots=True)
class TokenStanding:
    """The prompt tokens that a tenant may queue, those still left, and the seconds until its queue should be empty."""

    limit: int
    remaining: int
    reset_s: float


def retry_after_s(queued: int, places: int, snapshot: QueueSnapshot | None) -> int:
    """Returns the seconds, 1 to 120, until `places` of a tenant's `queued` requests or tokens should be served."""
    if snapshot is None:
        return RETRY_UNKNOWN_S
    share = min(1.0, max(places / max(1, queued), SHARE_TO_WAIT_FOR))
    return min(max(1, math.ceil(snapshot.queue.backlog_s * share)), LONGEST_RETRY_S)


class BacklogLimit:
    """Admits a tenant's requests up to a number of queued requests, and of tokens; a tenant may have its own limits."""

    def __init__(
        self,
        count: Callable[[str], TenantBacklog],
        most: TenantBacklog,
        *,
        snapshot: Callable[[], QueueSnapshot | None] = lambda: None,
        run_aside: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        """`count` reads a tenant's backlog, `most` bounds it; `run_aside` runs the count in a thread beside the call.

        `snapshot` returns the planner's snapshot, None without a planner.
        """
        self._snapshot = snapshot
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="backlog-count")  # started by its first task
        self._count, self._run_aside = count, run_aside or self._thread.submit
        self._most_of_all = most
        self._lock = threading.Lock()
        self._tenants: dict[str, TenantCount] = {}
        self._limits: dict[str, TenantLimits] = {}

    def set_limits(self, tenant: str, limits: TenantLimits) -> None:
        """Sets a tenant's own limits; where it has none, those of the service apply."""
        self._limits[tenant] = limits

    def limits_of(self, tenant: str) -> TenantLimits:
        """Returns the limits that were set last for a tenant."""
        return self._limits.get(tenant, NO_LIMITS)

    def standing(self, tenant: str) -> TokenStanding | None:
        """Returns what a tenant may still submit, or None if it has submitted nothing to this process."""
        with self._lock:
            if (known := self._tenants.get(tenant)) is None:
                return None
            queued = known.all.tokens
        most, snapshot = self._most(tenant).tokens, self._snapshot()
        return TokenStanding(most, max(0, most - queued), snapshot.queue.backlog_s if snapshot and queued else 0.0)

    def _most(self, tenant: str) -> TenantBacklog:
        own, all_have = self.limits_of(tenant), self._most_of_all
        return TenantBacklog(
            all_have.requests if own.queued_requests is None else own.queued_requests,
            all_have.tokens if own.queued_tokens is None else own.queued_tokens,
            all_have.bytes,
        )

    @contextmanager
    def admit(self, tenant: str, one: TenantBacklog, now: float) -> Iterator[None]:
        """Counts one request at `now`, monotonic seconds, while the block stores it; raises BacklogFull."""
        known = self._admitted(tenant, one, now)
        try:
            yield
        except BaseException:
            with self._lock:
                known.admitted -= one
            raise
        with self._lock:
            known.admitted -= one
            known.stored += one

    def _admitted(self, tenant: str, one: TenantBacklog, now: float) -> TenantCount:
        most = self._most(tenant)
        with self._lock:
            known = self._tenants.setdefault(tenant, TenantCount())
            due = now >= known.next_count_at and not known.counting
            known.counting = known.counting or due
            fitted = known.first_count.is_set() and known.exceeded(one, most) is None
        if due and fitted:
            try:
                self._run_aside(lambda: self._count_again(tenant, known))
            except RuntimeError as error:  # no thread starts, or this process is ending; the next call tries again
                with self._lock:
                    known.counting = False
                log.warning("backlog not counted", error=str(error))
        elif due:
            self._count_again(tenant, known)
        known.first_count.wait()
        with self._lock:
            exceeded = known.exceeded(one, most)
            if exceeded is None:
                known.admitted += one
                return known
            queued, counted_in_s = getattr(known.all, exceeded), known.next_count_at - time.monotonic()
        allowed = getattr(most, exceeded)
        setting = "TOKENS" if exceeded == "bytes" else exceeded.upper()  # MAGNUS_TENANT_QUEUED_TOKENS bounds both
        raise BacklogFull(
            f"{LIMITS[exceeded].format(queued)}; this service keeps at most {allowed:,} of yours "
            f"(MAGNUS_TENANT_QUEUED_{setting}, or what is set for your tenant). Wait for answers, or cancel "
            "what you no longer need.",
            retry_after_s=max(
                retry_after_s(queued, queued + getattr(one, exceeded) - allowed, self._snapshot()),
                min(math.ceil(counted_in_s), LONGEST_RETRY_S),  # an earlier call would meet this count again
            ),
        )

    def close(self) -> None:
        """Waits until no count is running."""
        self._thread.shutdown()

    def _count_again(self, tenant: str, known: TenantCount) -> None:
        began = time.monotonic()
        with self._lock:
            stored_before = known.stored
        try:
            counted = self._count(tenant)
            with self._lock:
                known.counted = counted
                known.stored -= stored_before
        except SQLAlchemyError as error:  # the database is unreachable, so the next insert fails anyway
            log.warning("backlog not counted", error=error)
        finally:
            ended = time.monotonic()
            with self._lock:
                known.next_count_at = ended + max(COUNT_EVERY_S, (ended - began) / COUNTING_SHARE)
                known.counting = False
            known.first_count.set()
