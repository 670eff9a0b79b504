"""Limits of what one tenant may have in the queue: requests, and the tokens of their prompts.

Counting 100,000 rows takes too long for each call that submits. So a thread counts a tenant's rows at most once a
second, and in between a process adds what it admits itself. A limit is therefore exceeded by at most what all web
processes together admit within that second.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import structlog
from sqlalchemy.exc import SQLAlchemyError

from models.tenant_backlog import TenantBacklog
from webapp.client_errors import BacklogFull

log = structlog.get_logger()

COUNT_EVERY_S = 1.0  # the rarer the cheaper, and the more a limit is exceeded; not tuned
COUNTING_SHARE = 0.05  # of one connection's time that may go into counting one tenant's rows; not tuned


@dataclass
class TenantCount:
    """A tenant's rows when they were counted last, and what this process has admitted since."""

    counted: TenantBacklog
    requests_since: int = 0
    tokens_since: int = 0
    next_count_at: float = 0.0
    counting: bool = False


class BacklogLimit:
    """Admits requests of a tenant until so many, or so many tokens, are queued."""

    def __init__(
        self,
        count: Callable[[str], TenantBacklog],
        *,
        max_requests: int,
        max_tokens: int,
        beside: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        """`count` reads a tenant's backlog; `beside` runs it without delaying the call, by default in a thread."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="backlog-count")  # started by its first task
        self._count, self._beside = count, beside or self._thread.submit
        self._max_requests, self._max_tokens = max_requests, max_tokens
        self._lock = threading.Lock()
        self._tenants: dict[str, TenantCount] = {}

    def admit(self, tenant: str, tokens: int, now: float) -> None:
        """Count one request with a prompt of so many tokens; `now` is monotonic, seconds. Raises BacklogFull."""
        with self._lock:
            known = self._tenants.setdefault(tenant, TenantCount(TenantBacklog()))
            due = now >= known.next_count_at and not known.counting
            known.counting = known.counting or due
        if due:
            self._beside(lambda: self._count_again(tenant, known))
        with self._lock:
            requests = known.counted.requests + known.requests_since
            all_tokens = known.counted.tokens + known.tokens_since
            if requests >= self._max_requests:
                raise BacklogFull(
                    f"{requests:,} of your requests are queued; this service keeps at most {self._max_requests:,} of a "
                    "tenant (MAGNUS_TENANT_QUEUED_REQUESTS). Wait for answers, or cancel what you no longer need."
                )
            if all_tokens + tokens > self._max_tokens:
                raise BacklogFull(
                    f"The prompts of your queued requests have {all_tokens:,} tokens; this service keeps at most "
                    f"{self._max_tokens:,} of a tenant (MAGNUS_TENANT_QUEUED_TOKENS). Wait for answers, or cancel what "
                    "you no longer need."
                )
            known.requests_since += 1
            known.tokens_since += tokens

    def close(self) -> None:
        """Return once nothing is counted any more."""
        self._thread.shutdown()

    def _count_again(self, tenant: str, known: TenantCount) -> None:
        began = time.monotonic()
        requests_before, tokens_before = known.requests_since, known.tokens_since
        try:
            counted = self._count(tenant)
            with self._lock:
                known.counted = counted
                known.requests_since -= requests_before  # these had been admitted before, and mostly are among the rows
                known.tokens_since -= tokens_before
        except SQLAlchemyError as error:  # the database is away; so is the insert that this limit is for
            log.warning("backlog not counted", error=error)
        finally:
            ended = time.monotonic()
            with self._lock:
                known.next_count_at = ended + max(COUNT_EVERY_S, (ended - began) / COUNTING_SHARE)
                known.counting = False
