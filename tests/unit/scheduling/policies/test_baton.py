import pytest

from scheduling.policies.baton import Baton
from scheduling.policy import RunningRow
from tests.unit.scheduling.scheduling_builders import SLOPED, a_paged_worker, a_request, a_row, a_worker, add_all, ids


def test_a_batch_grows_in_order_of_arrival_while_memory_is_below_the_threshold() -> None:
    policy, worker = Baton(), a_worker(tokens=60)
    add_all(policy, [a_request(str(number), at=number) for number in range(5)])
    # n rows take n · (10 + 2) tokens an iteration from now; 4 of them 48, 80 % of 60
    assert ids(policy.assign([worker], 5.0)) == {"w": [["0", "1", "2", "3"]]}
    assert len(policy) == 1


def test_joiners_go_where_the_fewest_rows_are() -> None:
    policy, full, empty = Baton(), a_worker("full", rows=[a_row("x"), a_row("y")]), a_worker("empty")
    add_all(policy, [a_request(str(number), at=number) for number in range(3)])
    assert ids(policy.assign([full, empty], 3.0)) == {"full": [["2"]], "empty": [["0", "1"]]}


def test_an_empty_batch_takes_a_prompt_beyond_the_threshold() -> None:
    policy = Baton()
    policy.add(a_request("giant", length=59), 0.0)
    assert ids(policy.assign([a_worker(tokens=60)], 0.0)) == {"w": [["giant"]]}


def test_a_batch_size_bounds_the_rows() -> None:
    policy = Baton(batch_size=2)
    add_all(policy, [a_request(str(number), at=number) for number in range(3)])
    assert ids(policy.assign([a_worker(rows=[a_row()])], 3.0)) == {"w": [["0"]]}
    assert [len(batch.requests) for batch in policy.waiting(3.0)] == [2]


def test_a_batch_shrinks_by_the_lowest_priority_once_memory_is_above_the_threshold() -> None:
    rows = [a_row("a", priority=1), a_row("b"), a_row("c", priority=1)]
    # 3 · (11 + 2) = 39 tokens are more than 95 % of 40; 2 · 13 are not
    (leaving,) = Baton().assign([a_worker(tokens=40, rows=rows)], 0.0)
    assert (leaving.requests, leaving.preempts, leaving.estimated_s) == ((), ("b",), 0.0)
    assert Baton().assign([a_worker(tokens=42, rows=rows)], 0.0) == []  # 39 of at most 39.9


def test_a_lone_row_keeps_its_place_however_much_memory_it_takes() -> None:
    assert Baton().assign([a_worker(tokens=11, rows=[a_row()])], 0.0) == []


def test_a_waiting_request_takes_the_place_of_the_lowest_priority_that_joined_last() -> None:
    policy = Baton()
    policy.add(a_request("urgent", at=9.0, priority=2), 9.0)
    first, last = RunningRow(a_request("first"), 1, 0.0), RunningRow(a_request("last"), 1, 5.0)
    # 3 · 13 = 39 tokens are below 80 % of 50, 4 · 13 = 52 are not
    worker = a_worker(tokens=50, rows=[first, last, a_row("higher", priority=1)])
    (assignment,) = policy.assign([worker], 10.0)
    assert ([request.id for request in assignment.requests], assignment.preempts) == (["urgent"], ("last",))


@pytest.mark.parametrize(
    ("tokens", "rows"),
    [
        (36, [a_row("a", priority=1), a_row("b", priority=1)]),  # none is of lower priority
        (36, [RunningRow(a_request("a", generated=1), 2, 0.0), a_row("b", priority=1)]),  # came back once, so it stays
        (60, [a_row("a"), a_row("long", length=25, priority=1)]),  # 2 · 28 beside the long row, more than 80 % of 60
    ],
)
def test_no_row_leaves_for_a_request_that_may_not_replace_it(tokens: int, rows: list[RunningRow]) -> None:
    policy = Baton()
    policy.add(a_request("waiting", priority=1), 0.0)
    assert policy.assign([a_worker(tokens=tokens, rows=rows)], 0.0) == []
    assert len(policy) == 1


def test_a_level_of_priority_is_worth_300_s_of_waiting() -> None:
    policy, worker = Baton(batch_size=1), a_worker()
    add_all(policy, [a_request("old", at=0.0), a_request("soon", at=299.0, priority=1)])
    policy.add(a_request("late", at=301.0, priority=1), 301.0)
    served = [ids(policy.assign([worker], 302.0))["w"] for _ in range(3)]
    assert served == [[["soon"]], [["old"]], [["late"]]]


def test_joiners_of_all_lengths_join_at_once_and_rows_leave_before() -> None:
    policy = Baton(shrink_above=0.95)
    add_all(policy, [a_request("long", length=320), a_request("s0", length=100), a_request("s1", length=100)])
    rows = [a_row("r0", length=1300), a_row("r1", length=1300), a_row("r2", length=1300)]
    # 3 · 1303 = 3909 are more than 95 % of 4000, and 2 more than 65 %: so nothing may join two such rows
    (leaving,) = policy.assign([a_worker(tokens=4000, costs=SLOPED, rows=rows)], 0.0)
    assert (leaving.preempts, leaving.requests) == (("r0",), ())
    assignments = policy.assign([a_worker(tokens=4000, costs=SLOPED)], 0.0)
    assert ids(assignments) == {"w": [["long", "s0", "s1"]]}
    assert all(assignment.joins and not assignment.preempts for assignment in assignments)


def test_the_queue_is_shown_in_batches_as_large_as_the_running_one() -> None:
    policy = Baton()
    add_all(policy, [a_request("a"), a_request("b", at=1.0), a_request("c", at=2.0, priority=1)])
    assert [[r.id for r in batch.requests] for batch in policy.waiting(2.0)] == [["c"], ["a"], ["b"]]
    policy.assign([a_worker(tokens=26, rows=[a_row("x", priority=1), a_row("y", priority=1)])], 2.0)
    # no memory is left for them; 2 rows run: prefill of 2 · 10 tokens, 10 iterations
    assert [(len(batch.requests), batch.estimated_s) for batch in policy.waiting(2.0)] == [(2, 1.02), (1, 1.01)]


def test_in_paged_memory_rows_count_with_their_own_tokens() -> None:
    policy, worker = Baton(), a_paged_worker(100, [a_row("long", length=40)])
    add_all(policy, [a_request(str(number), at=number) for number in range(5)])
    # 41 + 10 n tokens and 2 more for each of n + 1 rows: three joiners make 79, 80 % of 100 hold no more
    assert ids(policy.assign([worker], 5.0)) == {"w": [["0", "1", "2"]]}


def test_a_worker_gets_no_more_rows_than_it_takes() -> None:
    policy = Baton()
    add_all(policy, [a_request(str(number), at=number) for number in range(3)])
    assert ids(policy.assign([a_paged_worker(rows=[a_row()], max_rows=2)], 3.0)) == {"w": [["0"]]}
