"""The rate limit counts each key by itself and says when to come back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.rate_counts import SharedCount
from webapp.client_errors import RateLimited
from webapp.rate_limits import SHARE_EVERY_S, RateLimit


class SharedCounts:
    """Stands for the database: the counts of all web processes in windows of its clock."""

    def __init__(self) -> None:
        self.now = 600.0
        self.counts: dict[tuple[int, float], int] = {}
        self.exchanges = 0

    def __call__(self, key_id: int, requests: int, period_s: int) -> SharedCount:
        self.exchanges += 1
        window = self.now // period_s
        self.counts[key_id, window] = self.counts.get((key_id, window), 0) + requests
        return SharedCount(self.counts[key_id, window], (window + 1) * period_s - self.now)


def test_a_key_may_send_so_many_a_window_and_is_told_when_the_next_begins() -> None:
    shared = SharedCounts()
    limit = RateLimit("2/minute", shared)
    limit.count(1, now=0.0)
    shared.now = 640.0
    limit.count(1, now=40.0)
    with pytest.raises(RateLimited) as caught:
        limit.count(1, now=42.5)
    assert caught.value.retry_after_s == 18  # the window of 600 to 660 has 17.5 s left
    shared.now = 660.0
    limit.count(1, now=60.0)


def test_keys_do_not_share_a_limit() -> None:
    limit = RateLimit("1/second", SharedCounts())
    limit.count(1, now=5.0)
    limit.count(2, now=5.1)
    with pytest.raises(RateLimited):
        limit.count(2, now=5.2)


def test_two_processes_share_a_limit() -> None:
    shared = SharedCounts()
    one, other = RateLimit("10/minute", shared), RateLimit("10/minute", shared)
    for number in range(5):
        one.count(1, now=number)
        other.count(1, now=number)
    for process in (one, other):
        with pytest.raises(RateLimited):
            process.count(1, now=5.0)


def test_most_calls_need_no_statement() -> None:
    shared = SharedCounts()
    limit = RateLimit("1000/hour", shared)
    for number in range(100):
        limit.count(1, now=number / 100)
    assert shared.exchanges == 2  # at 0 and at SHARE_EVERY_S
    limit.count(1, now=1.0)
    assert shared.counts[1, 0] == 1 + SHARE_EVERY_S * 100 + 50


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
            processes[process].count(1, now=now)
        except RateLimited:
            continue
        passed[process] += 1
        unshared_at_most = max(unshared_at_most, sum(passed) - shared.counts[1, 10])
    assert sum(passed) <= most + unshared_at_most
    assert all(count <= most for count in passed)


@pytest.mark.parametrize("rate", ["", "5", "5/day", "-5/second", "5 per minute", "1/seconds"])
def test_anything_but_a_rate_is_refused(rate: str) -> None:
    with pytest.raises(ValueError, match="1000/minute"):
        RateLimit(rate, SharedCounts())
