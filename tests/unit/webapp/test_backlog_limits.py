"""A tenant's requests are admitted until its limits are reached, and again once the queue has become shorter."""

from collections.abc import Callable

import pytest
from sqlalchemy.exc import OperationalError

from models.tenant_backlog import TenantBacklog
from webapp.backlog_limits import COUNT_EVERY_S, BacklogLimit
from webapp.client_errors import BacklogFull

FAR = 10**9


class Queue:
    """Stands for the database and for the thread that counts in it: a count runs when the test says so."""

    def __init__(self) -> None:
        self.backlogs: dict[str, TenantBacklog] = {}
        self.asked_for: list[Callable[[], None]] = []
        self.away = False

    def count(self, tenant: str) -> TenantBacklog:
        if self.away:
            raise OperationalError("select", {}, Exception("away"))
        return self.backlogs.get(tenant, TenantBacklog())

    def run(self) -> None:
        while self.asked_for:
            self.asked_for.pop()()

    def limit(self, max_requests: int = FAR, max_tokens: int = FAR) -> BacklogLimit:
        return BacklogLimit(self.count, max_requests=max_requests, max_tokens=max_tokens, beside=self.asked_for.append)


def test_what_a_process_admits_counts_before_it_is_counted() -> None:
    limit = Queue().limit(max_requests=2)
    limit.admit("acme", 5, now=0.0)
    limit.admit("acme", 5, now=0.0)
    with pytest.raises(BacklogFull, match="MAGNUS_TENANT_QUEUED_REQUESTS"):
        limit.admit("acme", 5, now=0.0)
    limit.admit("globex", 5, now=0.0)


def test_the_tokens_of_prompts_have_a_limit_of_their_own() -> None:
    limit = Queue().limit(max_tokens=10)
    limit.admit("acme", 7, now=0.0)
    with pytest.raises(BacklogFull, match="MAGNUS_TENANT_QUEUED_TOKENS"):
        limit.admit("acme", 4, now=0.0)
    limit.admit("acme", 3, now=0.0)


def test_rows_of_other_processes_count_once_they_are_counted() -> None:
    queue = Queue()
    queue.backlogs["acme"] = TenantBacklog(requests=6, tokens=50)
    limit = queue.limit(max_requests=6)
    limit.admit("acme", 1, now=0.0)
    queue.run()
    with pytest.raises(BacklogFull):
        limit.admit("acme", 1, now=0.0)


def test_a_tenant_is_admitted_again_once_its_queue_is_shorter() -> None:
    queue = Queue()
    limit = queue.limit(max_requests=1)
    limit.admit("acme", 1, now=0.0)
    with pytest.raises(BacklogFull):
        limit.admit("acme", 1, now=0.0)
    queue.run()
    limit.admit("acme", 1, now=0.0)


def test_rows_are_counted_at_most_once_a_second() -> None:
    queue = Queue()
    limit = queue.limit()
    limit.admit("acme", 1, now=0.0)
    limit.admit("acme", 1, now=0.0)
    assert len(queue.asked_for) == 1
    queue.run()
    limit.admit("acme", 1, now=0.0)
    assert queue.asked_for == []
    limit.admit("acme", 1, now=FAR + COUNT_EVERY_S)
    assert len(queue.asked_for) == 1


def test_a_database_that_is_away_leaves_the_last_count() -> None:
    queue = Queue()
    limit = queue.limit(max_requests=1)
    queue.away = True
    limit.admit("acme", 1, now=0.0)
    queue.run()
    with pytest.raises(BacklogFull):
        limit.admit("acme", 1, now=0.0)
