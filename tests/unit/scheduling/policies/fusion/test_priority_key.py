""" """

import math
from dataclasses import replace

import numpy as np
import pytest

from scheduling.policies.fusion.fleet_arrays import FleetArrays
from scheduling.policies.fusion.length_buckets import BucketHeads, TenantQueues, WaitingRequest
from scheduling.policies.fusion.priority_key import (
    DUE_OFFSET,
    FAVOURS,
    REQUESTS_BY_KEY,
    FleetLoad,
    in_batches,
    priority_keys,
    serving_order,
)
from scheduling.request import PRIORITY_S, Request
from scheduling.virtual_token_counters import Account
from tests.unit.scheduling.scheduling_builders import a_paged_worker, a_request

# a token to generate takes a tenth of a second of the fleet, nothing else does
LOAD = FleetLoad(drain_s=20.0, step_s=0.1, seconds_per_feature=np.array([0.0, 0.0, 0.1, 0.0]))


def key(
    request: Request, delay_s: float = 1.0, load: FleetLoad = LOAD, now: float = 0.0, ahead_tokens: float = 1e6
) -> float:
    waiting = WaitingRequest(request, work_ahead=(0.0, 0.0, ahead_tokens, 0.0))
    return float(priority_keys(BucketHeads.from_requests([waiting]), np.array([[delay_s]]), load, now)[0, 0])


def test_the_key_is_the_arrival_plus_the_logarithm_of_the_delay() -> None:
    assert key(a_request(at=3.0), delay_s=5.0) == pytest.approx(3.0 + 20 * math.log(5))
    assert key(a_request(at=3.0), delay_s=5.0, now=10.0) == pytest.approx(-7.0 + 20 * math.log(5))


def test_where_nothing_waits_nothing_is_overtaken() -> None:
    idle = replace(LOAD, drain_s=0.0)
    assert key(a_request(at=1.0), delay_s=1000.0, load=idle) < key(a_request(at=1.01), delay_s=0.1, load=idle)


def test_a_level_of_priority_is_worth_a_time_of_waiting() -> None:
    assert key(replace(a_request(at=PRIORITY_S), priority=1)) == pytest.approx(key(a_request(at=0.0)))


def test_a_request_is_due_after_twice_what_first_come_first_served_would_take() -> None:
    # ahead of it 100 tokens of 0.1 s, then its own ten iterations: 2 · (10 + 1) s
    assert key(a_request(at=0.0), ahead_tokens=100.0, now=21.9) > -1e3
    due = key(a_request(at=0.0), ahead_tokens=100.0, now=22.5)
    assert due < -1e11
    assert due < key(a_request(at=0.0), ahead_tokens=101.0, now=22.5)  # due 0.2 s later


def test_a_favoured_tail_lets_short_ones_overtake_less_and_goodput_lets_them_overtake_more_and_longer() -> None:
    tail, goodput = (replace(LOAD, favour=FAVOURS[name]) for name in ("tail", "goodput"))
    # a quarter of the 20 s in which the fleet would serve all that waits, four times as much
    assert [key(a_request(), np.e, load) for load in (LOAD, tail, goodput)] == pytest.approx([20.0, 5.0, 80.0])
    first = a_request(at=0.0, predicted=10)  # 2 s under first come, first served: due after 4 s, or after 8
    assert key(first, load=LOAD, now=4.5, ahead_tokens=10.0) < DUE_OFFSET / 2
    assert key(first, load=goodput, now=4.5, ahead_tokens=10.0) > DUE_OFFSET / 2
    assert key(first, load=goodput, now=8.5, ahead_tokens=10.0) < DUE_OFFSET / 2


def test_one_that_would_miss_its_deadline_goes_before_all_that_are_not_due() -> None:
    urgent, later = (replace(a_request(predicted=10), deadline_at=at) for at in (15.0, 500.0))
    assert key(urgent) < -1e8
    assert key(urgent) < key(replace(urgent, deadline_at=16.0))
    assert key(later) == pytest.approx(0.0)


# a token to generate takes a tenth of a second of the fleet, nothing else does
QUEUE_LOAD = FleetLoad(drain_s=20.0, step_s=0.1, seconds_per_feature=np.array([0.0, 0.0, 0.1, 0.0]))
NOT_DUE = (0.0, 0.0, 1e6, 0.0)


def order_of(*requests: Request, served: dict[str, float] | None = None, load: FleetLoad = QUEUE_LOAD) -> list[str]:
    queues = TenantQueues()
    for request in requests:
        queues.add(WaitingRequest(request, NOT_DUE))
    for tenant, tokens in (served or {}).items():
        queues.counters.charge(Account(tenant), tokens)
    return [request.id for request in serving_order(queues.by_tenant, queues.counters, load, 10.0)]


def test_prompts_that_do_not_count_in_decisions_do_not_count_in_the_order_that_is_shown() -> None:
    own = replace(QUEUE_LOAD, seconds_per_feature=np.array([0.0, 0.1, 0.1, 0.001]))
    waiting = a_request("long", length=500), a_request("short", at=1.0)
    assert order_of(*waiting, load=own) == ["short", "long"]
    assert order_of(*waiting, load=replace(own, prompt_tokens=255.0)) == ["long", "short"]


def test_a_tenants_requests_come_by_key_so_short_ones_overtake() -> None:
    assert order_of(a_request("long", predicted=100), a_request("short", at=1.0)) == ["short", "long"]


def test_tenants_take_turns_by_the_tokens_that_they_will_have_been_served() -> None:
    # each request of a has 20 tokens, each of b 40
    requests = [a_request(f"a{n}", at=n, tenant="a") for n in range(4)]
    requests += [a_request(f"b{n}", at=n, tenant="b", predicted=30) for n in range(2)]
    assert order_of(*requests) == ["a0", "b0", "a1", "a2", "b1", "a3"]
    assert order_of(*requests, served={"a": 70.0}) == ["b0", "b1", "a0", "a1", "a2", "a3"]


def test_a_heavier_tenant_has_more_turns() -> None:
    queues = TenantQueues()
    queues.counters.set_weights({"b": 2.0})
    for one in [a_request(f"{tenant}{n}", at=n, tenant=tenant) for tenant in "ab" for n in range(4)]:
        queues.add(WaitingRequest(one, NOT_DUE))
    order = [request.id for request in serving_order(queues.by_tenant, queues.counters, QUEUE_LOAD, 10.0)]
    assert order == ["a0", "b0", "b1", "a1", "b2", "b3", "a2", "a3"]


def test_what_lies_behind_the_front_of_its_bucket_follows_by_arrival() -> None:
    requests = [a_request(f"{n:04}", at=n / 1000) for n in range(REQUESTS_BY_KEY + 2)]
    assert order_of(*reversed(requests)) == [request.id for request in requests]


def test_for_paged_workers_requests_are_cut_by_their_own_tokens_and_the_places() -> None:
    requests = [a_request("long", length=50), *(a_request(str(n)) for n in range(3))]
    by_memory = in_batches(requests, FleetArrays([a_paged_worker(100)]), 0.0)
    assert [[one.id for one in batch.requests] for batch in by_memory] == [["long", "0", "1"], ["2"]]  # 60 + 2 · 20
    by_rows = in_batches(requests, FleetArrays([a_paged_worker(100, max_rows=2)]), 0.0)
    assert [[one.id for one in batch.requests] for batch in by_rows] == [["long", "0"], ["1", "2"]]
