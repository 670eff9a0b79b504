from scheduling.policies.vanilla import Vanilla
from scheduling.policy import Assignment
from tests.unit.scheduling.scheduling_builders import a_request, a_worker, add_all, ids


def test_idle_workers_take_batches_of_equation_1_in_order_of_arrival() -> None:
    policy = Vanilla(10, 10)
    add_all(policy, [a_request(str(number), at=number) for number in range(6)])
    workers = [a_worker("busy", busy=True), a_worker("two", tokens=40), a_worker("three", tokens=60)]
    assert ids(policy.assign(workers, 6.0)) == {"two": [["0", "1"]], "three": [["2", "3", "4"]]}
    assert len(policy) == 1


def test_halves_of_a_batch_beyond_memory_go_first_and_sealed() -> None:
    policy = Vanilla(10, 10, batch_size=2)
    policy.out_of_memory(Assignment("w", (a_request("a"), a_request("b"))), 1.0)
    policy.add(a_request("c"), 1.0)
    assert len(policy) == 3
    first, second = policy.assign([a_worker("x"), a_worker("y")], 1.0)
    assert (first.sealed, second.sealed) == (True, True)
    assert policy.discard("c")
    assert not policy.discard("c")


def test_a_worker_too_small_for_one_request_gets_none_while_a_larger_one_lives() -> None:
    policy = Vanilla(10, 10)
    policy.add(a_request(), 0.0)
    small = a_worker("small", tokens=15)
    assert policy.assign([small, a_worker("large", tokens=20, busy=True)], 0.0) == []
    assert ids(policy.assign([a_worker("tiny", tokens=10), small], 0.0)) == {"small": [["r"]]}


def test_a_slice_limits_the_iterations_and_the_estimate() -> None:
    policy = Vanilla(10, 10, slice_tokens=5)
    policy.add(a_request(predicted=100), 0.0)
    (assignment,) = policy.assign([a_worker()], 0.0)
    assert assignment.iteration_limit == 5
    assert assignment.estimated_s == 0.51  # 10 ms prefill, 5 iterations of 0.1 s


def test_the_queue_is_shown_in_batches_with_estimates() -> None:
    policy = Vanilla(10, 10, batch_size=2)
    add_all(policy, [a_request(str(number), at=number) for number in range(3)])
    assert [batch.estimated_s for batch in policy.waiting(3.0)] == [0.0, 0.0, 0.0]  # no worker is known yet
    policy.assign([a_worker(busy=True)], 3.0)
    policy.out_of_memory(Assignment("w", (a_request("a"), a_request("b"))), 3.0)
    waiting = list(policy.waiting(3.02))
    assert [[request.id for request in batch.requests] for batch in waiting] == [["a"], ["b"], ["0", "1"], ["2"]]
    assert [batch.sealed for batch in waiting] == [True, True, False, False]
    # two rows: 0.02 + 1 s, waited 3.02 s since request 0 came: 1 + 3.02 / 1.02
    assert waiting[2].estimated_s == 1.02
    assert round(waiting[2].response_ratio, 2) == 3.96
