"""The rate limit counts each tenant by itself and says when to come back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.tenants.tenant_limits import SharedCount
from protocol.client_errors import RateLimited
from webapp.limits.rate_limits import SHARE_EVERY_S, RateLimit, RateStanding, go_duration


class SharedCounts:
    """Stands for the database: the counts of all web processes in windows of its clock."""

    def __init__(self) -> None:
        self.now = 600.0
        self.counts: dict[tuple[str, float], int] = {}
        self.exchanges = 0

    def __call__(self, tenant: str, requests: int, period_s: int) -> SharedCount:
        self.exchanges += 1
        window = self.now // period_s
        self.counts[tenant, window] = self.counts.get((tenant, window), 0) + requests
        return SharedCount(self.counts[tenant, window], (window + 1) * period_s - self.now)


def test_a_tenant_may_send_so_many_a_window_and_is_told_when_the_next_begins() -> None:
    shared = SharedCounts()
    limit = RateLimit("2/minute", shared)
    limit.count("acme", now=0.0)
    shared.now = 640.0
    limit.count("acme", now=40.0)
    with pytest.raises(RateLimited) as caught:
        limit.count("acme", now=42.5)
    assert caught.value.retry_after_s == 18  # the window of 600 to 660 has 17.5 s left
    shared.now = 660.0
    limit.count("acme", now=60.0)


def test_tenants_do_not_share_a_limit() -> None:
    limit = RateLimit("1/second", SharedCounts())
    limit.count("acme", now=5.0)
    limit.count("globex", now=5.1)
    with pytest.raises(RateLimited):
        limit.count("globex", now=5.2)


def test_two_processes_share_a_limit() -> None:
    shared = SharedCounts()
    one, other = RateLimit("10/minute", shared), RateLimit("10/minute", shared)
    for number in range(5):
        one.count("acme", now=number)
        other.count("acme", now=number)
    for process in (one, other):
        with pytest.raises(RateLimited):
            process.count("acme", now=5.0)


def test_calls_that_fail_for_lack_of_the_database_do_not_count() -> None:
    shared = SharedCounts()
    away = True

    def share(tenant: str, requests: int, period_s: int) -> SharedCount:
        if away:
            raise ConnectionError
        return shared(tenant, requests, period_s)

    limit = RateLimit("3/minute", share)
    for _ in range(5):
        with pytest.raises(ConnectionError):
            limit.count("acme", now=0.0)
    away = False
    assert [limit.count("acme", now=1.0).remaining for _ in range(3)] == [2, 1, 0]


def test_most_calls_need_no_statement() -> None:
    shared = SharedCounts()
    limit = RateLimit("1000/hour", shared)
    for number in range(100):
        limit.count("acme", now=number / 100)
    assert shared.exchanges == 2  # at 0 and at SHARE_EVERY_S
    limit.count("acme", now=1.0)
    assert shared.counts["acme", 0] == 1 + SHARE_EVERY_S * 100 + 50


@given(st.lists(st.tuples(st.integers(0, 1), st.floats(0.0, 0.4)), max_size=200), st.integers(1, 20))
def test_a_window_passes_no_more_than_the_limit_and_what_was_not_shared_yet(
    calls: list[tuple[int, float]], most: int
) -> None:
    shared = SharedCounts()
    processes = [RateLimit(f"{most}/minute", shared) for _ in range(2)]
    passed = [0, 0]
    unshared_at_most = 0
    now = 0.0
    for process, gap_s in calls:
        now = min(now + gap_s, 59.0)
        shared.now = 600.0 + now
        try:
            processes[process].count("acme", now=now)
        except RateLimited:
            continue
        passed[process] += 1
        unshared_at_most = max(unshared_at_most, sum(passed) - shared.counts["acme", 10])
    assert sum(passed) <= most + unshared_at_most
    assert all(count <= most for count in passed)


@pytest.mark.parametrize("rate", ["", "5", "5/day", "-5/second", "5 per minute", "1/seconds"])
def test_anything_but_a_rate_is_refused(rate: str) -> None:
    with pytest.raises(ValueError, match="1000/minute"):
        RateLimit(rate, SharedCounts())


def test_a_tenants_own_rate_is_a_minutes_and_replaces_the_default() -> None:
    limit = RateLimit("1000/second", SharedCounts())
    assert limit.count("acme", now=0.0, own_per_minute=2) == RateStanding(2, 1, 60.0)
    assert limit.count("acme", now=15.0, own_per_minute=2) == RateStanding(2, 0, 60.0)
    with pytest.raises(RateLimited) as caught:
        limit.count("acme", now=30.0, own_per_minute=2)
    assert caught.value.standing == RateStanding(2, 0, 45.0)
    assert limit.count("acme", now=30.0, own_per_minute=4).remaining == 1  # raised meanwhile


def test_whoever_is_refused_learns_what_is_left() -> None:
    shared = SharedCounts()
    one, other = RateLimit("3/minute", shared), RateLimit("3/minute", shared)
    assert one.count("acme", now=0.0).remaining == 2
    assert other.count("acme", now=0.0).remaining == 1  # it knows the first one
    assert one.count("acme", now=1.0) == RateStanding(3, 0, 60.0)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "0ms"),
        (0.0171, "18ms"),
        (0.9999, "1s"),
        (6.5, "6.5s"),
        (59.9999, "1m0s"),
        (360.0, "6m0s"),
        (3603.25, "1h0m3.25s"),
        (90_061.0, "25h1m1s"),
    ],
)
def test_a_duration_is_written_as_go_writes_it(seconds: float, shown: str) -> None:
    assert go_duration(seconds) == shown
