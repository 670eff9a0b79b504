"""A request that comes now is expected by the place of its own key in the order of the queue."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from scheduling.costs import ServingCurves
from scheduling.forecast.forecast_inputs import RecentArrivals
from scheduling.forecast.measured_order import GROUPS, SAMPLED, RowPace, expected_by_order, queue_order
from scheduling.forecast.queue_order import LATEST, ROUNDS, Coming, Group, QueueOrder
from scheduling.policies.fusion.priority_key import FAVOURS
from scheduling.policies.fusion.serving_pace import ServingPace
from scheduling.request import PRIORITY_S, Request
from scheduling.sharing.background.deadlines import Work
from scheduling.sharing.model_queue import WaitsBehind
from tests.unit.scheduling.scheduling_builders import a_request, a_row, a_worker

NOW = 1.7e9
# A token takes 10 ms of a worker of its own, and nothing else takes time: work is proportional to the answer.
PER_TOKEN = ServingCurves((0.0,) * 4, (0.0, 0.01, 0.0, 0.0))


BY_TOKENS = (0.0, 0.0, 1.0, 0.0, 0.0)  # a request delays others by its tokens


def order_of(
    waiting: Sequence[Request],
    coming: Sequence[Request] = (),
    *,
    favour: str | None = "mean",
    joins: bool = True,
    busy_s: float = 0.0,
) -> QueueOrder:
    arrivals = RecentArrivals()
    for one in coming:
        arrivals.add(one, NOW - 1)
    worker = replace(a_worker("w", 2_000, PER_TOKEN), busy_s=busy_s)
    much = Work(requests=1000, prefill=10_000, remaining=50_000)  # so that nothing that waits is due soon
    behind = [WaitsBehind(one, much) for one in waiting]
    return queue_order(
        behind,
        arrivals,
        ServingPace(),
        [worker],
        NOW,
        slowness=1.0,
        favour=FAVOURS[favour] if favour else None,
        joins=joins,
    )


def wait_s(order: QueueOrder, tokens: int, level: int = 0, age_s: float = 0.0) -> float:
    return order.response_s(10, tokens, level, age_s) - tokens * order.token_s


def some_requests(count: int, tokens: int, ago_s: float = 1.0, priority: int = 0) -> list[Request]:
    return [
        a_request(f"{tokens}-{priority}-{n}", NOW - ago_s - n / 1000, predicted=tokens, priority=priority)
        for n in range(count)
    ]


def test_first_come_first_served_waits_for_everything_that_waits() -> None:
    order = order_of(some_requests(40, 50), favour=None)
    assert wait_s(order, 5) == pytest.approx(20.0)  # 40 requests of 50 tokens, 10 ms each
    assert wait_s(order, 500) == pytest.approx(20.0)
    assert wait_s(order, 5, age_s=3.0) == pytest.approx(17.0)


def test_nothing_is_expected_while_nothing_waits() -> None:
    assert expected_by_order(order_of(some_requests(1, 5)), (), NOW) == {}


def test_what_is_favoured_says_how_far_a_request_overtakes() -> None:
    waits = [wait_s(order_of(some_requests(40, 50), favour=one), 48) for one in ("goodput", "mean", "tail")]
    assert waits == sorted(waits)
    assert waits[0] < waits[-1]


def test_by_delay_a_short_request_overtakes_and_a_long_one_does_not() -> None:
    order = order_of(some_requests(40, 50))
    assert wait_s(order, 5) == pytest.approx(0.0, abs=0.1)
    assert wait_s(order, 500) == pytest.approx(20.0, rel=0.05)


def test_shorter_arrivals_delay_a_request_until_it_is_due() -> None:
    waiting = (Group(1.0, 10.0, (-1.0,) * 5, (1e9,) * 5),)
    quiet = QueueOrder((0.0, 0.0, 0.1, 0.0), 0.0, 1.0, waiting=waiting, delay_s=BY_TOKENS, due_ratio=2.0)
    busy, flooded = (replace(quiet, coming=(Coming(0.0, work_s),)) for work_s in (0.5, 5.0))
    assert quiet.response_s(1, 100) == pytest.approx(10.0)
    # half of the pace is left at first; later less waits, and the shorter delay of an arrival makes up for less
    assert 12.0 < busy.response_s(1, 100) < 20.0
    assert flooded.response_s(1, 100) == pytest.approx(10.0 + 5 * 20.0)  # it is due after twice the 10 s
    assert busy.response_s(1, 1) == pytest.approx(0.0)  # its own delay is the shortest


def test_arrivals_are_expected_to_last_as_long_as_requests_have_been_waiting() -> None:
    waiting = (Group(1.0, 10.0, (-1.0,) * 5, (1e9,) * 5),)
    endless = QueueOrder(
        (0.0, 0.0, 0.1, 0.0), 0.0, 1.0, waiting=waiting, coming=(Coming(0.0, 5.0),), delay_s=BY_TOKENS, due_ratio=2.0
    )
    assert replace(endless, lasts_s=4.0).response_s(1, 100) == pytest.approx(10.0 + 5 * 4.0)


def test_a_waiting_request_is_expected_by_its_own_arrival_and_length() -> None:
    long = [a_request(f"50-0-{n}", NOW - 1 - n, predicted=50) for n in range(20)]
    waiting = [WaitsBehind(one, Work()) for one in (*long, *some_requests(1, 5, ago_s=0.0))]
    requests = [one.request for one in waiting]
    expected = expected_by_order(order_of(requests, favour=None), waiting, NOW)
    assert expected["50-0-19"].starts_in_s == pytest.approx(0.0)  # the oldest
    assert expected["50-0-9"].starts_in_s == pytest.approx(5.0, rel=0.05)
    assert expected["5-0-0"].starts_in_s == pytest.approx(10.0, rel=0.05)  # 20 requests of 50 tokens, 10 ms each
    by_delay = expected_by_order(order_of(requests), waiting, NOW)
    assert by_delay["5-0-0"].seconds < by_delay["50-0-0"].seconds


def test_rows_are_as_slow_as_they_have_lately_been() -> None:
    pace = RowPace()
    assert pace.slowness == 1.0
    for look in range(200):  # an iteration takes 0.1 s, and a row gains a token in 0.2 s
        pace.looked([([a_row("r", generated=10 + 5 * look, predicted=2000, limit=4000)], 0.1)], NOW + look)
    learned = pace.slowness
    assert learned == pytest.approx(2.0, rel=0.1)
    pace.looked([([a_row("r", generated=1010, predicted=2000, limit=4000)], 0.1)], NOW - 1e5)  # the clock went back
    assert pace.slowness == learned


def test_arrivals_that_nearly_fill_the_pace_are_followed_for_a_bounded_number_of_rounds() -> None:
    waiting = (Group(0.0, 10.0, (-1.0,) * 5, (1e9,) * 5),)
    order = QueueOrder(
        (0.0, 0.0, 0.1, 0.0),
        0.0,
        1.0,
        waiting=waiting,
        coming=(Coming(0.0, 0.99),),
        delay_s=BY_TOKENS,
        due_ratio=1e6,
        overtaking=100.0,
    )
    assert order.response_s(1, 100) == pytest.approx(10 * (1 - 0.99**ROUNDS) / 0.01, rel=0.02)  # of 1,000 s in the end


def test_a_waiting_request_goes_ahead_once_it_is_due() -> None:
    later = Group(9.0, 10.0, (0.0,) * 5, (3.0, 3.5, 4.0, 4.5, 5.0))
    sooner = Group(0.0, 6.0, (-1.0,) * 5, (1e9,) * 5)
    order = QueueOrder((0.0, 0.0, 0.1, 0.0), 0.0, 1.0, waiting=(sooner, later), delay_s=BY_TOKENS, due_ratio=2.0)
    assert order.response_s(1, 100) == pytest.approx(16.0)  # 6 s of work, during which those of 10 s become due
    never = replace(order, waiting=(sooner, later._replace(due_s=(1e9,) * 5)))
    assert never.response_s(1, 100) == pytest.approx(6.0)


def test_a_level_is_worth_its_seconds_of_waiting() -> None:
    order = order_of(some_requests(10, 50, ago_s=PRIORITY_S / 2), favour=None)
    assert wait_s(order, 5) == pytest.approx(5.0)
    assert wait_s(order, 5, level=1) == pytest.approx(0.0)


def test_a_batch_begins_when_a_worker_is_free() -> None:
    assert wait_s(order_of([], favour=None, joins=False, busy_s=3.0), 5) == pytest.approx(3.0)
    assert wait_s(order_of([], favour=None, busy_s=3.0), 5) == 0.0


def test_what_is_published_is_bounded_and_a_sample_of_a_long_queue_counts_for_all() -> None:
    order = order_of(some_requests(5 * SAMPLED, 50), some_requests(300, 20))
    assert len(order.waiting) <= GROUPS
    assert len(order.coming) <= GROUPS
    assert sum(group.work_s for group in order.waiting) == pytest.approx(5 * SAMPLED * 0.5, rel=0.01)


def test_an_interval_ends_within_a_few_times_what_waits() -> None:
    order = order_of(some_requests(40, 50))
    assert order.latest_s(1.0) == pytest.approx(LATEST * 20.0)
    assert order.latest_s(50.0) == LATEST * 50.0
