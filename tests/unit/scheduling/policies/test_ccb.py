from hypothesis import given
from hypothesis import strategies as st

from scheduling.policies.ccb import ConservativeContinuous
from scheduling.policy import RunningRow, Worker
from scheduling.simulation.engine_costs import EngineCosts
from scheduling.simulation.simulated_worker import Instance
from scheduling.simulation.simulator import Arrival, simulate
from tests.unit.scheduling.scheduling_builders import FLAT, a_memory, a_request, add_all, examples, ids


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


def test_the_queue_is_shown_slots_by_slots() -> None:
    policy = ConservativeContinuous(10, 10, slots=2)
    add_all(policy, [a_request("a"), a_request("b", at=1.0), a_request("c", at=2.0)])
    policy.assign([a_running("x", 4)], 2.0)
    assert [(len(batch.requests), batch.estimated_s) for batch in policy.waiting(2.0)] == [(2, 1.02), (1, 1.01)]


def test_once_no_slot_is_free_as_many_requests_again_are_sent_ahead_one_by_one() -> None:
    policy = ConservativeContinuous(10, 10, slots=2)
    add_all(policy, [a_request(str(number), at=number) for number in range(9)])
    assignments = policy.assign([a_running("x", 1), a_running("y", 3)], 9.0)
    # x has a free slot and takes two ahead, y one: it has one ahead already
    assert ids(assignments) == {"x": [["0"], ["1"], ["2"]], "y": [["3"]]}
    assert {one.most_rows for one in assignments} == {2}
    assert len(policy) == 5
    assert policy.assign([a_running("x", 4), a_running("y", 4)], 9.0) == []


@examples(10)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=40))
def test_rows_sent_ahead_never_run_beside_more_rows_than_there_are_slots(lengths: list[int]) -> None:
    arrivals = [Arrival(a_request(f"{n:02}", at=0.01 * n, predicted=1), tokens) for n, tokens in enumerate(lengths)]
    fleet = [Instance(name, a_memory(4 * 1034)) for name in "xy"]
    costs = EngineCosts(FLAT)
    trace = simulate(ConservativeContinuous(10, 1024, slots=3), arrivals, fleet, costs, seed=0)
    assert len(trace.answers) == len(lengths)
    ends_at = {one.id: one.finished_at for one in trace.answers.values()}
    joins = [(batch.worker, batch.started_at, ends_at[one]) for batch in trace.batches for one in batch.ids]
    for worker, joined_at, _ in joins:
        assert sum(one[0] == worker and one[1] <= joined_at < one[2] - 1e-9 for one in joins) <= 3
