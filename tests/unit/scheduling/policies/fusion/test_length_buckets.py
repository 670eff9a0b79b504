""" """

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.policies.fusion.length_buckets import MOST_BUCKETS, LengthBuckets, TenantQueues, WaitingRequest
from scheduling.request import Request
from scheduling.virtual_token_counters import Account
from tests.unit.scheduling.scheduling_builders import a_request, examples


def buckets_of(*requests: Request) -> LengthBuckets:
    buckets = LengthBuckets()
    for request in requests:
        buckets.add(WaitingRequest(request))
    return buckets


def head_ids(buckets: LengthBuckets) -> set[str]:
    return {waiting.request.id for bucket in buckets.bucket_keys() if (waiting := buckets.first(bucket))}


def test_requests_with_a_deadline_leave_theirs_in_order_of_deadlines() -> None:
    buckets = buckets_of(a_request("none"), a_request("b", deadline_at=20.0), a_request("a", at=1.0, deadline_at=10.0))
    assert head_ids(buckets) == {"none", "a"}
    assert sorted(buckets.heads().deadline_at.tolist()) == [10.0, np.inf]


def test_a_request_that_cannot_keep_its_deadline_waits_by_arrival() -> None:
    # 10 iterations of 0.1 s: at 1.5, those until 2.5 and later can be kept
    times = {"missed": 2.4, "kept": 2.5}
    buckets = buckets_of(a_request("none", at=1.0), *(a_request(name, deadline_at=at) for name, at in times.items()))
    buckets.demote_missed_deadlines(1.5, step_s=0.1)
    assert head_ids(buckets) == {"missed", "kept"}
    buckets.demote_missed_deadlines(1.6, step_s=0.1)
    assert head_ids(buckets) == {"kept"}  # same arrival, so by id: then missed, then the one that came at 1.0
    assert len(buckets) == 3


def test_however_many_priorities_a_tenant_chooses_a_decision_considers_a_bounded_number_of_requests() -> None:
    lengths = [(2**one, 2**two) for one in range(10) for two in range(10)]
    requests = [
        a_request(f"{priority}-{prompt}-{tokens}", length=prompt, predicted=tokens, priority=priority)
        for priority in range(-100, 101)
        for prompt, tokens in lengths
    ]
    buckets = buckets_of(*requests)
    assert len(buckets) == 20_100
    assert len(buckets.bucket_keys()) <= MOST_BUCKETS + len(lengths)
    assert {f"100-{prompt}-{tokens}" for prompt, tokens in lengths} <= head_ids(buckets)  # nobody of them waits behind
    assert [buckets.take(one.id).request.id for one in requests] == [one.id for one in requests]
    assert buckets.bucket_keys() == []


def test_the_first_few_of_each_bucket_come_in_its_order() -> None:
    buckets = buckets_of(*(a_request(name, at=at) for name, at in (("c", 3.0), ("a", 1.0), ("b", 2.0), ("d", 4.0))))
    buckets.add(WaitingRequest(a_request("long", length=100)))
    buckets.add(WaitingRequest(buckets.take("b").request))  # its old entry is still there
    buckets.take("c")
    assert [waiting.request.id for waiting in buckets.first_of_each(4)] == ["a", "b", "long"]
    assert [waiting.request.id for waiting in buckets.first_of_each(1)] == ["a", "long"]
    assert [waiting.request.id for waiting in buckets.first_of_each(9)] == ["a", "b", "d", "long"]
    assert buckets_of().first_of_each(9) == []


@examples(50)
@given(st.lists(st.tuples(st.integers(1, 2000), st.integers(1, 1000), st.integers(0, 9)), max_size=90), st.randoms())
def test_the_heads_are_the_first_of_each_bucket_whichever_request_is_taken_out(
    drawn: list[tuple[int, int, int]], random: Random
) -> None:
    requests = [
        a_request(f"{number:02}", at=at, length=length, predicted=predicted)
        for number, (length, predicted, at) in enumerate(drawn)
    ]
    buckets = buckets_of(*requests)
    random.shuffle(requests)
    while requests:
        heads = buckets.heads()
        shown = [buckets.first(bucket) for bucket in buckets.bucket_keys()]
        assert heads.arrived_at.tolist() == [head.request.arrived_at for head in shown if head]
        assert heads.prefill.tolist() == [head.request.prefill for head in shown if head]
        first_of_all = min((request.arrived_at, request.id) for request in requests)[1]
        assert buckets.head_column(first_of_all) is not None
        assert buckets.take(requests[-1].id).request == requests.pop()
        assert {waiting.request.id for waiting in buckets} == {request.id for request in requests}
    assert buckets.bucket_keys() == []


def queues_of(*tenants: str) -> TenantQueues:
    """One request of each tenant, named like it."""
    queues = TenantQueues()
    for tenant in tenants:
        queues.add(WaitingRequest(a_request(tenant, tenant=tenant)))
    return queues


def test_the_least_served_tenants_come_first_and_equal_ones_by_name() -> None:
    queues = queues_of("c", "a", "b")
    queues.counters.charge(Account("a"), 1.0)
    assert queues.least_served(8) == [Account("b"), Account("c"), Account("a")]
    assert queues.least_served(2) == [Account("b"), Account("c")]


def test_a_tenant_without_waiting_requests_takes_no_turn() -> None:
    queues = queues_of("a", "b")
    assert "a" in queues
    assert queues.take("a").request.id == "a"
    assert ("a" in queues, len(queues), queues.least_served(8)) == (False, 1, [Account("b")])
    with pytest.raises(KeyError):
        queues.take("a")


def test_the_backlog_is_the_work_of_all_that_waits() -> None:
    queues = TenantQueues()
    assert queues.mean_remaining() == 1.0
    for name, predicted in (("short", 10), ("long", 30)):
        queues.add(WaitingRequest(a_request(name, predicted=predicted, tenant=name)))
    assert queues.mean_remaining() == 20.0
    queues.take("long")
    assert queues.mean_remaining() == 10.0
    assert [waiting.request.id for waiting in queues] == ["short"]


def test_there_may_be_many_buckets() -> None:
    lengths = [(2**one, 2**other) for one in range(10) for other in range(10)]
    buckets = buckets_of(*(a_request(str(pair), length=pair[0], predicted=pair[1]) for pair in lengths))
    heads = buckets.heads()
    assert list(zip(heads.prefill.tolist(), heads.remaining.tolist(), strict=True)) == lengths
