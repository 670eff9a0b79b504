"""A tenant's requests are admitted until its limits are reached, and again once the queue has become shorter."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from sqlalchemy.exc import OperationalError

from models.planning.queue_snapshot import QueueSnapshot, WaitingQueue
from models.tenants.tenant_limits import TenantBacklog, TenantLimits
from protocol.client_errors import BacklogFull
from webapp.limits.backlog_limits import (
    COUNT_EVERY_S,
    COUNTING_SHARE,
    RETRY_UNKNOWN_S,
    BacklogLimit,
    TokenStanding,
    retry_after_s,
)

FAR = 10**9


class Queue:
    """Stands for the database and for the thread that counts in it: a count runs when the test says so."""

    def __init__(self) -> None:
        self.backlogs: dict[str, TenantBacklog] = {}
        self.asked_for: list[Callable[[], None]] = []
        self.away = False
        self.backlog_s: float | None = None

    def count(self, tenant: str) -> TenantBacklog:
        if self.away:
            raise OperationalError("select", {}, Exception("away"))
        return self.backlogs.get(tenant, TenantBacklog())

    def run(self) -> None:
        while self.asked_for:
            self.asked_for.pop()()

    def limit(self, max_requests: int = FAR, max_tokens: int = FAR, max_bytes: int = FAR) -> BacklogLimit:
        return BacklogLimit(
            self.count,
            TenantBacklog(max_requests, max_tokens, max_bytes),
            snapshot=self.snapshot,
            run_aside=self.asked_for.append,
        )

    def snapshot(self) -> QueueSnapshot | None:
        if self.backlog_s is None:
            return None
        return QueueSnapshot(at=datetime.now(UTC), queue=WaitingQueue(backlog_s=self.backlog_s))


def submit(limit: BacklogLimit, tenant: str, tokens: int, now: float) -> None:
    with limit.admit(tenant, TenantBacklog(1, tokens, 10 * tokens), now=now):
        """Stores the request."""


def test_what_a_process_admits_counts_before_it_is_counted() -> None:
    limit = Queue().limit(max_requests=2)
    submit(limit, "acme", 5, now=0.0)
    submit(limit, "acme", 5, now=0.0)
    with pytest.raises(BacklogFull, match="MAGNUS_TENANT_QUEUED_REQUESTS"):
        submit(limit, "acme", 5, now=0.0)
    submit(limit, "globex", 5, now=0.0)


def test_a_refused_client_comes_back_once_its_queue_may_be_counted_again() -> None:
    def slowly(tenant: str) -> TenantBacklog:
        time.sleep(0.15)
        return TenantBacklog(requests=1)

    queue = Queue()
    queue.backlog_s = 1.0
    limit = BacklogLimit(slowly, TenantBacklog(1, FAR, FAR), snapshot=queue.snapshot)
    with pytest.raises(BacklogFull) as caught:
        submit(limit, "acme", 5, now=time.monotonic())
    assert (caught.value.retry_after_s or 0) >= 0.15 / COUNTING_SHARE  # not after the second that the queue should take


def test_the_tokens_of_prompts_have_a_limit_of_their_own() -> None:
    limit = Queue().limit(max_tokens=10)
    submit(limit, "acme", 7, now=0.0)
    with pytest.raises(BacklogFull, match="MAGNUS_TENANT_QUEUED_TOKENS"):
        submit(limit, "acme", 4, now=0.0)
    submit(limit, "acme", 3, now=0.0)


def test_the_bytes_of_requests_have_a_limit_of_their_own() -> None:
    limit = Queue().limit(max_bytes=100)
    submit(limit, "acme", 7, now=0.0)
    with pytest.raises(BacklogFull, match="at most 100 of yours"):
        submit(limit, "acme", 4, now=0.0)


def test_rows_of_other_processes_count_once_they_are_counted() -> None:
    queue = Queue()
    queue.backlogs["acme"] = TenantBacklog(requests=6, tokens=50)
    limit = queue.limit(max_requests=6)
    with pytest.raises(BacklogFull):
        submit(limit, "acme", 1, now=0.0)


def test_a_request_that_is_being_stored_counts_though_no_count_has_it_yet() -> None:
    queue = Queue()
    limit = queue.limit(max_requests=2)
    submit(limit, "acme", 1, now=0.0)
    with limit.admit("acme", TenantBacklog(1, 1), now=FAR):
        queue.backlogs["acme"] = TenantBacklog(requests=1, tokens=1)
        queue.run()
        with pytest.raises(BacklogFull):
            submit(limit, "acme", 1, now=0.0)


def test_a_request_that_could_not_be_stored_does_not_count() -> None:
    limit = Queue().limit(max_requests=1)
    with pytest.raises(ConnectionError), limit.admit("acme", TenantBacklog(1, 1), now=0.0):
        raise ConnectionError
    submit(limit, "acme", 1, now=0.0)


def test_a_tenant_is_admitted_again_once_its_queue_is_shorter() -> None:
    queue = Queue()
    limit = queue.limit(max_requests=1)
    submit(limit, "acme", 1, now=0.0)
    with pytest.raises(BacklogFull):
        submit(limit, "acme", 1, now=0.0)
    submit(limit, "acme", 1, now=FAR)


def test_a_client_that_comes_back_is_not_refused_by_what_was_counted_before() -> None:
    queue = Queue()
    queue.backlogs["acme"] = TenantBacklog(requests=1, tokens=5)
    limit = queue.limit(max_requests=1)
    with pytest.raises(BacklogFull):
        submit(limit, "acme", 1, now=0.0)
    queue.backlogs.clear()
    with pytest.raises(BacklogFull):
        submit(limit, "acme", 1, now=0.0)  # counting is not due: however many come, rows are counted once a second
    submit(limit, "acme", 1, now=FAR)
    assert queue.asked_for == []


def test_rows_are_counted_at_most_once_a_second() -> None:
    queue = Queue()
    limit = queue.limit()
    submit(limit, "acme", 1, now=0.0)  # which waits for the first count
    submit(limit, "acme", 1, now=0.0)
    assert queue.asked_for == []
    submit(limit, "acme", 1, now=FAR)
    submit(limit, "acme", 1, now=FAR)
    assert len(queue.asked_for) == 1
    queue.run()
    submit(limit, "acme", 1, now=0.0)
    assert queue.asked_for == []
    submit(limit, "acme", 1, now=FAR + COUNT_EVERY_S)
    assert len(queue.asked_for) == 1


def test_a_database_that_is_away_leaves_the_last_count() -> None:
    queue = Queue()
    limit = queue.limit(max_requests=1)
    queue.away = True
    submit(limit, "acme", 1, now=0.0)
    queue.run()
    with pytest.raises(BacklogFull):
        submit(limit, "acme", 1, now=0.0)


def test_what_is_set_for_a_tenant_holds_in_place_of_the_services_limits() -> None:
    limit = Queue().limit(max_requests=2, max_tokens=10)
    limit.set_limits("acme", TenantLimits(queued_requests=1))
    limit.set_limits("globex", TenantLimits(queued_tokens=4))
    submit(limit, "acme", 10, now=0.0)
    with pytest.raises(BacklogFull, match="at most 1 of yours"):
        submit(limit, "acme", 0, now=0.0)
    with pytest.raises(BacklogFull, match="at most 4 of yours"):
        submit(limit, "globex", 5, now=0.0)
    limit.set_limits("globex", TenantLimits())
    submit(limit, "globex", 5, now=0.0)


def test_what_is_left_is_what_the_tenant_may_still_submit() -> None:
    queue = Queue()
    queue.backlog_s = 30.0
    limit = queue.limit(max_tokens=10)
    assert limit.standing("acme") is None
    submit(limit, "acme", 7, now=0.0)
    assert limit.standing("acme") == TokenStanding(10, 3, 30.0)
    queue.backlogs["acme"] = TenantBacklog(requests=3, tokens=5)
    submit(limit, "acme", 0, now=FAR)
    queue.backlogs["acme"] = TenantBacklog(requests=3, tokens=50)
    queue.run()
    assert limit.standing("acme") == TokenStanding(10, 0, 30.0)


@pytest.mark.parametrize(
    ("queued", "places", "backlog_s", "expected"),
    [
        (2, 1, 60.0, 30),  # half of the queue must be served first: half of 60 s
        (10_000, 1, 600.0, 60),  # a tenth of it, though one place would be free at once
        (10_000, 1, 0.0, 1),
        (100, 100, 100_000.0, 120),
        (5, 50, 10.0, 10),  # more places than there are requests: the queue is then empty
        (0, 7, 50.0, 50),
        (7, 1, None, RETRY_UNKNOWN_S),
    ],
)
def test_a_full_tenant_is_told_to_come_back_when_its_queue_should_have_room(
    queued: int, places: int, backlog_s: float | None, expected: int
) -> None:
    queue = Queue()
    queue.backlog_s = backlog_s
    assert retry_after_s(queued, places, queue.snapshot()) == expected


def test_a_process_that_ends_admits_by_its_last_counts() -> None:
    limit = BacklogLimit(Queue().count, TenantBacklog(1, FAR, FAR))
    limit.close()
    submit(limit, "acme", 5, now=0.0)
    with pytest.raises(BacklogFull):
        submit(limit, "acme", 5, now=0.0)


def test_a_count_for_which_there_was_no_thread_is_tried_at_the_next_call() -> None:
    queue, threads = Queue(), 0

    def run(count: Callable[[], None]) -> None:
        if not threads:
            raise RuntimeError("can't start new thread")
        count()

    limit = BacklogLimit(queue.count, TenantBacklog(3, FAR, FAR), run_aside=run)
    submit(limit, "acme", 1, now=0.0)
    submit(limit, "acme", 1, now=FAR)
    threads = 1
    submit(limit, "acme", 1, now=FAR)
    submit(limit, "acme", 1, now=FAR + FAR)
