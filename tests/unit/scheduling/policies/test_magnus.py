from hypothesis import given
from hypothesis import strategies as st

from scheduling.policies.magnus import MagnusPolicy
from scheduling.policy import Assignment, Worker
from tests.unit.scheduling.scheduling_builders import (
    FLAT,
    SLOPED,
    a_memory,
    a_request,
    a_worker,
    add_all,
    examples,
    ids,
)


def test_the_case_study_of_figure_6_is_packed_as_in_the_paper() -> None:
    # 3 large requests among 18 small ones; 14,953 tokens hold 18 · 20, and 3 · 2000
    policy, worker = MagnusPolicy(), a_worker(tokens=14_953, costs=SLOPED)
    policy.assign([worker], 0.0)
    for number in range(21):
        tokens = 1000 if number % 7 == 3 else 10
        policy.add(a_request(str(number), length=tokens, predicted=tokens), 0.0)
    sizes = [len(assignment.requests) for assignment in policy.assign([worker, a_worker("v", 14_953, SLOPED)], 0.0)]
    assert sorted(sizes) == [3, 18]


def test_a_long_batch_overtakes_once_it_has_waited() -> None:
    policy, worker = MagnusPolicy(wma_threshold=0), a_worker()
    policy.add(a_request("long", at=0.0, predicted=100), 0.0)  # 10.01 s
    policy.add(a_request("s1", at=5.0), 5.0)  # 1.01 s
    assert ids(policy.assign([worker], 6.0)) == {"w": [["s1"]]}  # 1.99 against 1.60
    policy.add(a_request("s2", at=6.5), 6.5)
    assert ids(policy.assign([worker], 7.0)) == {"w": [["long"]]}  # 1.70 against 1.50


@examples(40)
@given(st.lists(st.tuples(st.floats(0, 100), st.integers(1, 200)), min_size=2, max_size=12))
def test_a_batch_is_overtaken_only_by_those_that_have_waited_their_share_of_its_wait(
    drawn: list[tuple[float, int]],
) -> None:
    policy, worker, now = MagnusPolicy(wma_threshold=0), a_worker(costs=SLOPED), 101.0
    requests = {str(n): a_request(str(n), at=at, predicted=predicted) for n, (at, predicted) in enumerate(drawn)}
    add_all(policy, list(requests.values()))
    (served,) = policy.assign([worker], now)
    for waiting in policy.waiting(now):
        arrived_at = waiting.requests[0].arrived_at
        share = 1 - served.estimated_s / waiting.estimated_s
        assert served.requests[0].arrived_at <= arrived_at + (now - arrived_at) * share + 1e-9


def test_halves_of_a_batch_beyond_memory_are_sealed() -> None:
    policy = MagnusPolicy()
    policy.out_of_memory(Assignment("w", tuple(a_request(name) for name in "abcd")), 0.0)
    policy.add(a_request("e"), 0.0)
    assert [(len(batch.requests), batch.sealed) for batch in policy.waiting(0.0)] == [(2, True), (2, True), (1, False)]


def test_the_worker_on_which_a_batch_is_worth_most_gets_it() -> None:
    slow, fast = Worker("slow", a_memory(1000), FLAT), Worker("fast", a_memory(1000), SLOPED)
    policy = MagnusPolicy(wma_threshold=0)
    policy.add(a_request("a"), 0.0)
    assert ids(policy.assign([slow, fast], 1.0)) == {"fast": [["a"]]}


def test_batches_grow_to_the_largest_worker_and_a_small_one_takes_what_fits_it() -> None:
    policy, large, small = MagnusPolicy(), a_worker("large", 200), a_worker("small", 60)
    policy.assign([large, small], 0.0)
    for number in range(10):
        policy.add(a_request(f"a{number}"), 0.0)  # one batch of ten fills the large worker
    policy.add(a_request("b", at=1.0, length=40), 1.0)
    assert ids(policy.assign([a_worker("large", 200, busy=True), small], 1.0)) == {"small": [["b"]]}
    # nothing whole fits any more: three of the ten do, 3 · 20 tokens
    assert ids(policy.assign([a_worker("large", 200, busy=True), small], 2.0)) == {"small": [["a0", "a1", "a2"]]}
    assert ids(policy.assign([large], 2.0)) == {"large": [[f"a{number}" for number in range(3, 10)]]}


def test_what_fits_in_no_part_waits_for_a_larger_worker_and_the_largest_tries() -> None:
    policy, large, small = MagnusPolicy(), a_worker("large", 200), a_worker("small", 60)
    policy.add(a_request("giant", length=500), 0.0)
    assert policy.assign([a_worker("large", 200, busy=True), small], 0.0) == []
    assert ids(policy.assign([large, small], 0.0)) == {"large": [["giant"]]}


def test_halves_too_large_for_the_fleet_that_is_left_are_taken_apart() -> None:
    policy, small = MagnusPolicy(), a_worker("small", 30)
    policy.assign([small], 0.0)
    policy.out_of_memory(Assignment("gone", tuple(a_request(name, length=20 + ord(name)) for name in "abcd")), 0.0)
    served = [ids(policy.assign([small], 0.0)) for _ in range(4)]
    assert sorted(batch["small"] for batch in served) == [[["a"]], [["b"]], [["c"]], [["d"]]]


def test_memory_is_reserved_for_the_upper_prediction() -> None:
    policy, worker = MagnusPolicy(), a_worker(tokens=100)
    policy.assign([worker], 0.0)
    add_all(policy, [a_request(name, predicted=10, upper=40) for name in "abc"])  # 50 tokens each
    assert [len(batch.requests) for batch in policy.waiting(0.0)] == [2, 1]


def test_as_published_memory_is_reserved_for_the_prediction_itself() -> None:
    policy, worker = MagnusPolicy(reserves_upper=False), a_worker(tokens=100)
    policy.assign([worker], 0.0)
    add_all(policy, [a_request(name, predicted=10, upper=40) for name in "abcdef"])  # 20 tokens each
    assert [len(batch.requests) for batch in policy.waiting(0.0)] == [5, 1]


def test_a_request_that_comes_back_unfinished_counts_as_longer_than_it_was_predicted() -> None:
    policy = MagnusPolicy()
    policy.add(a_request("r", predicted=50, upper=100, generated=80), 0.0)
    (batch,) = policy.waiting(0.0)
    (request,) = batch.requests
    assert 90 < request.predicted < request.predicted_upper < 400
