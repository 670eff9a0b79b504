import pytest

from scheduling.policies.scls import DEEPSPEED_RULE, LeastLoaded, MemoryRule, SliceLevel, packing_memory
from scheduling.policy import Assignment, Worker
from tests.unit.scheduling.scheduling_builders import FLAT, SLOPED, a_memory, a_request, a_worker, add_all, ids


@pytest.mark.parametrize(("length", "rows"), [(100, 28), (500, 22), (896, 22), (897, 12), (1900, 12)])
def test_deepspeeds_limits_are_those_of_algorithm_2(length: int, rows: int) -> None:
    # a slice of 128: 228 and 628 and 1024 and 1025 and 2028 tokens a row
    assert DEEPSPEED_RULE.largest_size(a_memory(10**6), length, 128) == rows


def test_memory_bounds_a_batch_as_equations_8_and_9_say() -> None:
    rule = MemoryRule(usable_share=0.9)
    assert rule.largest_size(a_memory(1000), 50, 50) == 9  # ⌊900 / 100⌋
    assert rule.largest_size(a_memory(1000), 5000, 50) == 1
    assert MemoryRule(cap=4).largest_size(a_memory(1000), 50, 50) == 4


def test_all_that_waits_goes_out_at_once_the_longest_batch_first() -> None:
    policy = SliceLevel(slice_tokens=10, memory_rule=MemoryRule(cap=2))
    add_all(policy, [a_request(str(number), length=length) for number, length in enumerate([10, 500, 12, 480, 14])])
    assignments = policy.assign([a_worker("x"), a_worker("y")], 0.0)
    # 500 and 480: 1.0 + 1 s, to x; then y gets 10 and 12: 0.024 + 1 s; and 14: 0.014 + 1 s
    assert ids(assignments) == {"x": [["3", "1"]], "y": [["0", "2"], ["4"]]}
    assert [assignment.iteration_limit for assignment in assignments] == [10, 10, 10]
    assert len(policy) == 0


def test_the_interval_follows_the_least_load() -> None:
    policy = SliceLevel(slice_tokens=10, least_interval_s=0.1)
    policy.add(a_request("a"), 0.0)
    busy = Worker("w", a_memory(1000), FLAT, busy_s=4.99, queued=1)
    policy.assign([busy], 0.0)  # load 4.99 + 1.01 = 6, T = 3
    policy.add(a_request("b"), 1.0)
    assert policy.assign([busy], 1.0) == []
    assert policy.wake_at(1.0) == 3.0
    assert ids(policy.assign([busy], 3.0)) == {"w": [["b"]]}


def test_with_a_factor_of_zero_the_interval_is_fixed() -> None:
    policy = SliceLevel(slice_tokens=10, interval_factor=0.0, least_interval_s=2.0)
    policy.add(a_request("a"), 0.0)
    policy.assign([Worker("w", a_memory(1000), FLAT, busy_s=90.0, queued=1)], 0.0)
    policy.add(a_request("b"), 0.0)
    assert policy.wake_at(0.0) == 2.0
    assert policy.wake_at(5.0) is None  # overdue: whatever happens next will do


def test_unless_told_otherwise_the_least_interval_is_a_slice_of_one_row() -> None:
    policy = SliceLevel(slice_tokens=10)
    policy.add(a_request("a"), 0.0)
    policy.assign([a_worker("x"), a_worker("y")], 0.0)  # y stays empty, so the least load is 0
    policy.add(a_request("b"), 0.0)
    assert policy.wake_at(0.0) == 1.001  # one token of prefill, ten iterations


def test_unfinished_requests_are_batched_by_what_they_have_to_prefill() -> None:
    policy = SliceLevel(slice_tokens=10)
    add_all(policy, [a_request("a", length=10, generated=490), a_request("b", length=500), a_request("c", length=10)])
    batches = [sorted(request.id for request in a.requests) for a in policy.assign([a_worker()], 0.0)]
    assert sorted(batches) in ([["a", "b"], ["c"]], [["a", "b", "c"]])


def test_halves_of_a_batch_beyond_memory_go_out_as_they_are() -> None:
    policy = SliceLevel(slice_tokens=10)
    policy.out_of_memory(Assignment("w", tuple(a_request(name) for name in "abcd")), 0.0)
    assert len(policy) == 4
    assert policy.discard("a")
    policy.add(a_request("e"), 0.0)
    assert [(len(batch.requests), batch.sealed) for batch in policy.waiting(0.0)] == [(1, True), (2, True), (1, False)]
    assignments = policy.assign([a_worker()], 0.0)
    assert sorted((len(a.requests), a.sealed) for a in assignments) == [(1, False), (1, True), (2, True)]
    assert not policy.discard("e")


def test_the_pool_is_shown_in_batches_of_the_size_that_fits() -> None:
    policy = SliceLevel(slice_tokens=10, memory_rule=MemoryRule(usable_share=1.0))
    policy.assign([a_worker(tokens=100)], 0.0)
    lengths = [10, 15, 12, 40, 10, 90]
    add_all(policy, [a_request(str(number), at=number, length=length) for number, length in enumerate(lengths)])
    # 100 tokens hold four rows of 15 + 10, two of 40 + 10 and one of 90 + 10
    shown = [[request.id for request in batch.requests] for batch in policy.waiting(6.0)]
    assert shown == [["0", "1", "2"], ["3", "4"], ["5"]]


def test_an_unequal_fleet_packs_for_the_size_that_fills_most_memory() -> None:
    fleet = [a_worker("large", 1000), a_worker("middle", 600), a_worker("small", 100)]
    assert packing_memory(fleet) == a_memory(600)  # 2 · 600 beats 1 · 1000 and 3 · 100


def test_a_batch_goes_to_the_least_loaded_worker() -> None:
    x = Worker("x", a_memory(1000), FLAT, busy_s=3.0, queued=1)
    y = Worker("y", a_memory(1000), FLAT, busy_s=1.0, queued=1)
    loads = LeastLoaded([x, y])
    # a batch of one row takes 0.01 + 10 · 0.1 = 1.01 s: y 2.01, y 3.02, x 4.01
    assert [loads.place(1, 10, 10)[0].name for _ in range(3)] == ["y", "y", "x"]
    assert round(loads.least_load_s, 2) == 3.02


def test_on_an_unequal_fleet_a_batch_goes_where_it_ends_first_and_fits() -> None:
    slow = Worker("slow", a_memory(1000), FLAT)
    fast = Worker("fast", a_memory(100), SLOPED, busy_s=0.1, queued=1)
    loads = LeastLoaded([slow, fast])
    assert loads.place(1, 10, 10)[0].name == "fast"  # 0.1 + 0.49 s against 1.01 s
    assert loads.place(6, 10, 10)[0].name == "slow"  # 120 tokens
    assert loads.place(60, 10, 10)[0].name == "slow"  # fits nowhere; the largest tries


def test_a_worker_that_ran_dry_ends_the_interval_early_where_costs_are_overestimated() -> None:
    policy, worker = SliceLevel(16), a_worker(tokens=400)
    add_all(policy, [a_request(str(number), predicted=100) for number in range(40)])
    policy.assign([worker], 0.0)  # FLAT: a slice of 16 iterations takes 1.6 s, three batches 4.8 s and more
    policy.add(a_request("late", at=1.7), 1.7)
    assert policy.wake_at(0.0) == pytest.approx(1.601)  # Γ: one row of one token for a slice
    assert policy.assign([a_worker(tokens=400, busy=True)], 1.7) == []
    assert [one.worker for one in policy.assign([worker], 1.7)] == ["w"]
