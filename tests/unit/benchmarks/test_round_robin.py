from benchmarks.paper.round_robin import DealtInTurn, SlicesInTurn
from scheduling.policies.ccb import ConservativeContinuous
from scheduling.policies.scls import MemoryRule
from scheduling.policies.vanilla import Vanilla
from scheduling.policy import Assignment
from tests.unit.scheduling.scheduling_builders import a_request, a_worker, add_all, ids


def test_requests_dealt_out_in_turn_are_served_by_their_own_worker() -> None:
    policy = DealtInTurn(lambda: Vanilla(10, 10, batch_size=5))
    add_all(policy, [a_request(str(number), at=number) for number in range(4)])
    assert ids(policy.assign([a_worker("x"), a_worker("y", busy=True)], 4.0)) == {"x": [["0", "2"]]}
    assert [len(batch.requests) for batch in policy.waiting(4.0)] == [2]
    assert ids(policy.assign([a_worker("x"), a_worker("y")], 4.0)) == {"y": [["1", "3"]]}


def test_rows_dealt_out_in_turn_join_their_own_worker_only() -> None:
    policy = DealtInTurn(lambda: ConservativeContinuous(10, 10, slots=2))
    add_all(policy, [a_request(str(number), at=number) for number in range(2)])
    assert ids(policy.assign([a_worker("x"), a_worker("y")], 2.0)) == {"x": [["0"]], "y": [["1"]]}


def test_a_batch_that_did_not_fit_returns_to_its_worker() -> None:
    policy = DealtInTurn(lambda: Vanilla(10, 10, batch_size=2))
    policy.out_of_memory(Assignment("y", (a_request("a"), a_request("b"))), 1.0)
    assert ids(policy.assign([a_worker("x"), a_worker("y")], 1.0)) == {"y": [["a"]]}


def test_batches_of_slices_go_round() -> None:
    policy = SlicesInTurn(10, MemoryRule(cap=1))
    add_all(policy, [a_request(str(number), at=number) for number in range(3)])
    assert ids(policy.assign([a_worker("x"), a_worker("y")], 3.0)) == {"x": [["0"], ["2"]], "y": [["1"]]}


def test_batches_pass_over_a_worker_that_is_too_small() -> None:
    policy = SlicesInTurn(10)
    policy.assign([a_worker("x", 1000), a_worker("small", 50), a_worker("z", 1000)], 0.0)
    names = [policy._place(4, 10, 10)[0].name for _ in range(4)]  # 4 · (10 + 10) = 80 tokens
    assert names == ["x", "z", "z", "x"]
    assert policy._place(4, 1000, 10)[0].name == "z"  # fits nowhere; of the largest the first in turn
