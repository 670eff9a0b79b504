"""A policy that offloads all that waits gives idle workers one batch at a time."""

from scheduling.policies.scls import SliceLevel
from scheduling.policies.wrapping.held_batches import HeldBatches
from scheduling.policy import Assignment
from tests.unit.scheduling.scheduling_builders import a_request, a_worker, add_all


def with_requests(count: int) -> HeldBatches:
    """A policy with this many requests, of which some twenty fit a batch of a worker of the default memory."""
    policy = HeldBatches(lambda: SliceLevel(128))
    add_all(policy, [a_request(f"r{n:03}", length=250 + n, predicted=100) for n in range(count)])
    return policy


def test_an_idle_worker_gets_one_batch_and_the_others_wait_and_can_be_discarded() -> None:
    policy = with_requests(100)
    assert policy.assign([a_worker(busy=True)], 0.0) == []
    (first,) = policy.assign([a_worker("idle"), a_worker("busy", busy=True)], 0.0)
    assert (first.worker, first.iteration_limit) == ("idle", 128)
    assert len(policy) == 100 - len(first.requests)
    assert policy.wake_at(0.0) is None
    waiting = [request.id for batch in policy.waiting(0.0) for request in batch.requests]
    assert len(waiting) == len(policy)
    for left, request_id in enumerate(reversed(waiting)):
        assert policy.discard(request_id)
        assert not policy.discard(request_id)
        assert len(policy) == len(waiting) - left - 1


def test_a_batch_whose_requests_were_all_discarded_is_neither_shown_nor_given_out() -> None:
    policy = with_requests(100)
    policy.assign([a_worker()], 0.0)
    next_one, *others = policy.waiting(0.0)
    for request in next_one.requests:
        policy.discard(request.id)
    assert [batch.requests for batch in policy.waiting(0.0)] == [batch.requests for batch in others]
    (given,) = policy.assign([a_worker()], 0.0)
    assert given.requests == others[0].requests


def test_every_request_is_given_out_once_the_longest_batches_first() -> None:
    policy, given = with_requests(100), list[Assignment]()
    while len(policy):
        given += policy.assign([a_worker("a"), a_worker("b")], 0.0)
    assert sorted(request.id for batch in given for request in batch.requests) == [f"r{n:03}" for n in range(100)]
    assert [batch.estimated_s for batch in given] == sorted((batch.estimated_s for batch in given), reverse=True)


def test_a_small_worker_gets_a_batch_that_fits_it() -> None:
    policy = with_requests(100)
    small = a_worker("small", tokens=3_000)
    assert policy.assign([small, a_worker("large", busy=True)], 0.0) == []  # all batches are made for the large one
    assert policy.assign([small], 0.0) != []  # it is the largest one that is left


def test_a_batch_that_did_not_fit_comes_back_in_halves() -> None:
    policy = with_requests(10)
    (batch,) = policy.assign([a_worker()], 0.0)
    policy.out_of_memory(batch, 1.0)
    assert len(policy) == 10
    halves = [one for at in (50.0, 60.0) for one in policy.assign([a_worker()], at)]
    assert [len(half.requests) for half in halves] == [5, 5]
