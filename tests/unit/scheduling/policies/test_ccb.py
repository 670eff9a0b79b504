from scheduling.policies.ccb import ConservativeContinuous
from scheduling.policy import Assignment, RunningRow, Worker
from tests.unit.scheduling.scheduling_builders import FLAT, a_memory, a_request, a_worker, add_all, ids


def a_running(name: str, rows: int) -> Worker:
    running = tuple(RunningRow(a_request(f"{name}{number}"), 3, 0.0) for number in range(rows))
    return Worker(name, a_memory(80), FLAT, rows=running)


def test_free_slots_are_filled_in_order_of_arrival_the_emptiest_worker_first() -> None:
    policy = ConservativeContinuous(10, 10)  # 80 tokens: 4 slots
    add_all(policy, [a_request(str(number), at=number) for number in range(4)])
    assignments = policy.assign([a_running("x", 3), a_running("y", 1), a_running("z", 4)], 4.0)
    # y has three slots, x one: y, y, then x and y equal, the first offered
    assert ids(assignments) == {"x": [["2"]], "y": [["0", "1", "3"]]}
    assert all(assignment.joins for assignment in assignments)


def test_a_worker_with_a_batch_to_finish_takes_no_rows() -> None:
    policy = ConservativeContinuous(10, 10)
    policy.add(a_request(), 0.0)
    assert policy.assign([a_worker(busy=True)], 0.0) == []
    assert policy.assign([], 0.0) == []


def test_rows_that_did_not_fit_wait_again_and_a_lone_one_reserves_its_limit() -> None:
    policy = ConservativeContinuous(10, 10, slots=4)
    policy.out_of_memory(Assignment("w", (a_request("a"), a_request("b")), joins=True), 0.0)
    policy.out_of_memory(Assignment("w", (a_request("c"),), joins=True), 0.0)
    assert policy.discard("a")
    assert len(policy) == 2
    assert [batch.generation_length for batch in policy.waiting(0.0)] == [10, 1024]  # no worker is known yet
    (assignment,) = policy.assign([a_worker()], 0.0)
    assert [request.predicted for request in assignment.requests] == [10, 1024]


def test_requests_dealt_out_in_turn_join_their_own_worker_only() -> None:
    policy = ConservativeContinuous(10, 10, slots=2, round_robin=True)
    add_all(policy, [a_request(str(number), at=number) for number in range(3)])
    assert ids(policy.assign([a_running("x", 2), a_running("y", 0)], 3.0)) == {"y": [["1"]]}


def test_the_queue_is_shown_slots_by_slots() -> None:
    policy = ConservativeContinuous(10, 10, slots=2)
    add_all(policy, [a_request("a"), a_request("b", at=1.0), a_request("c", at=2.0)])
    policy.assign([a_running("x", 2)], 2.0)
    assert [(len(batch.requests), batch.estimated_s) for batch in policy.waiting(2.0)] == [(2, 1.02), (1, 1.01)]
