""" """

from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scheduling.costs import Floats
from scheduling.policies.fusion.fleet_arrays import FleetArrays
from scheduling.policies.fusion.length_buckets import BucketHeads, LengthBuckets, WaitingRequest
from scheduling.policies.fusion.matching import (
    KEYS_TRIED,
    ROWS_PER_JOINER,
    WORKERS_TRIED,
    OwnKey,
    WorkerReservation,
    admits,
    candidate_workers,
    fits_now,
    fits_soonest,
    fits_to_the_end,
    join_best_pairs,
)
from scheduling.policies.fusion.priority_key import DUE_OFFSET
from scheduling.policy import RunningRow, Worker
from tests.unit.scheduling.scheduling_builders import (
    FLAT,
    a_memory,
    a_paged_worker,
    a_request,
    a_row,
    a_worker,
    examples,
)


def running(tokens: int, *rows: tuple[int, int]) -> Worker:
    """Rows of (cached, remaining) tokens."""
    made = tuple(
        RunningRow(a_request(f"r{n}", length=cached, predicted=left), 0, 0.0) for n, (cached, left) in enumerate(rows)
    )
    return Worker(f"w{tokens}", a_memory(tokens), FLAT, made)


def test_only_the_request_that_it_is_reserved_for_may_join_a_reserved_worker() -> None:
    fleet, reservation, buckets = FleetArrays([a_worker("a"), a_worker("b")]), WorkerReservation(), LengthBuckets()
    for name, length in (("small", 5), ("big", 100)):
        buckets.add(WaitingRequest(a_request(name, length=length)))
    reservation.reserve(fleet, a_request("big", length=100), 0.0)
    assert (bool(reservation), reservation.request_id) == (True, "big")
    key = np.zeros((2, 2))
    reservation.exclude_others(fleet, np.array([0, 1]), buckets, key, 0.0)
    assert key.tolist() == [[np.inf, 0.0], [0.0, 0.0]]
    key = np.zeros((1, 2))
    reservation.exclude_others(fleet, np.array([1]), buckets, key, 0.0)
    assert key.tolist() == [[0.0, 0.0]]


def test_a_reserved_worker_takes_requests_that_end_before_the_reserving_one_fits() -> None:
    fleet = FleetArrays([running(900, (100, 300), (100, 30))])  # "big" fits beside the longer row, after 30 iterations
    reservation, buckets, key = WorkerReservation(), LengthBuckets(), np.zeros((1, 3))
    for name, length, predicted in (("big", 100, 100), ("sooner", 5, 30), ("later", 5, 60)):
        buckets.add(WaitingRequest(a_request(name, length=length, predicted=predicted)))
    reservation.reserve(fleet, a_request("big", length=100, predicted=100), 0.0)
    reservation.exclude_others(fleet, np.array([0]), buckets, key, 0.0)
    assert key.tolist() == [[0.0, 0.0, np.inf]]
    reservation.exclude_others(fleet, np.array([0]), buckets, key, 0.1)  # it would end an iteration later
    assert key.tolist() == [[0.0, np.inf, np.inf]]


def test_no_request_may_join_a_worker_reserved_for_a_request_that_is_not_the_first_of_its_bucket() -> None:
    fleet, reservation, buckets = FleetArrays([a_worker("a")]), WorkerReservation(), LengthBuckets()
    for name, at in (("first", 0.0), ("second", 1.0)):
        buckets.add(WaitingRequest(a_request(name, at=at)))
    reservation.reserve(fleet, a_request("second", at=1.0), 0.0)
    key = np.zeros((1, 1))
    reservation.exclude_others(fleet, np.array([0]), buckets, key, 0.0)
    assert key.tolist() == [[np.inf]]


def test_without_a_reservation_or_its_worker_no_request_is_excluded() -> None:
    fleet, reservation, key = FleetArrays([a_worker("a")]), WorkerReservation(), np.zeros((1, 1))
    reservation.exclude_others(fleet, np.array([0]), LengthBuckets(), key, 0.0)
    reservation.reserve(fleet, a_request(), 0.0)
    elsewhere = FleetArrays([a_worker("b")])
    assert (reservation.worker_in(fleet), reservation.worker_in(elsewhere)) == (True, False)
    reservation.exclude_others(elsewhere, np.array([0]), LengthBuckets(), key, 0.0)
    reservation.release()
    assert not reservation
    reservation.exclude_others(fleet, np.array([0]), LengthBuckets(), key, 0.0)
    assert key.tolist() == [[0.0]]


def test_a_large_request_fits_soonest_where_what_is_left_ends_first() -> None:
    slow = running(1000, (100, 500), (100, 400))
    quick = running(1001, (100, 300), (100, 30), (100, 20))
    # beside the row that is left with 300 to come, 2 · 400 fit after 30 iterations
    assert fits_soonest(FleetArrays([slow, quick]), 300.0, 100.0)[0] == 1
    assert fits_soonest(FleetArrays([slow, running(1001)]), 300.0, 100.0)[0] == 1  # nothing runs there
    too_small = running(500)  # nothing runs there, but it would never fit
    assert fits_soonest(FleetArrays([too_small, quick]), 900.0, 100.0)[0] == 1


def test_in_paged_memory_it_fits_once_the_rows_left_leave_its_own_tokens() -> None:
    rows = [a_row("short", length=100, generated=0, predicted=30), a_row("long", length=100, generated=0, predicted=90)]
    # beside both at most 130 + 130 + 60, so 330 hold it at once; 260 hold it beside the long one, after 30 iterations
    at_once, later = a_paged_worker(330, rows, name="at once"), a_paged_worker(260, rows, name="later")
    assert fits_soonest(FleetArrays([later, at_once]), 50.0, 10.0)[0] == 1
    full = a_paged_worker(330, rows, max_rows=2, name="full")
    assert fits_soonest(FleetArrays([full, at_once]), 50.0, 10.0)[0] == 1


LENGTHS = st.tuples(st.integers(1, 60), st.integers(1, 60))
ROWS = st.lists(st.integers(1, 60), max_size=4)
THREE = [(10, 10), (20, 10), (40, 10)]  # of three buckets


def buckets_of(lengths: list[tuple[int, int]], at: float = 0.0) -> LengthBuckets:
    """Requests of these lengths by the number of their bucket's column; alike ones share a bucket."""
    buckets = LengthBuckets()
    for number, (length, predicted) in enumerate(lengths):
        buckets.add(WaitingRequest(a_request(f"{number:02}", at=at * number, length=length, predicted=predicted)))
    return buckets


def fleet_of(*rows: list[int], tokens: int = 200) -> FleetArrays:
    """Workers with rows of these lengths, each about to end."""
    return FleetArrays([a_worker(tokens=tokens, rows=[a_row(length=row, predicted=2) for row in one]) for one in rows])


def matched(
    fleet: FleetArrays,
    buckets: LengthBuckets,
    key: Floats,
    at_most: int = 1000,
    own_key: OwnKey = lambda waiting: np.inf,
) -> list[tuple[int, str]]:
    """Workers and the requests that join them, in order, at most `at_most` pairs."""
    joined: list[tuple[int, str]] = []

    def join(worker: int, waiting: WaitingRequest) -> bool:
        fleet.join(worker, buckets.take(waiting.request.id).request)
        joined.append((worker, waiting.request.id))
        return len(joined) < at_most

    assert join_best_pairs(fleet, buckets, np.arange(len(fleet)), key, own_key, join) == bool(joined)
    return joined


def heads_of(*requests: tuple[int, int]) -> BucketHeads:
    return BucketHeads.from_requests(
        [WaitingRequest(a_request(f"h{n}", length=p, predicted=r)) for n, (p, r) in enumerate(requests)]
    )


def test_a_request_goes_to_the_worker_where_its_key_is_least_and_each_empty_worker_takes_one() -> None:
    key = np.array([[1.0, 2.0, 3.0], [5.0, 4.0, 3.5]])
    assert matched(fleet_of([], []), buckets_of(THREE), key) == [(0, "00"), (1, "02")]
    key = np.array([[1.0, 9.0, 9.0], [9.0, 5.0, 9.0], [9.0, 4.0, 3.0]])
    assert matched(fleet_of([], [], []), buckets_of(THREE), key) == [(0, "00"), (2, "02"), (1, "01")]


def test_a_request_that_is_due_takes_only_those_of_its_bucket_along_that_are_due_themselves() -> None:
    buckets, due = LengthBuckets(), {"due": DUE_OFFSET, "due, too": DUE_OFFSET + 2.0, "due between": DUE_OFFSET + 1.0}
    for name, predicted in (("due", 100), ("due, too", 100), ("not due", 100), ("due between", 30), ("short", 10)):
        buckets.add(WaitingRequest(a_request(name, at=float(len(buckets)), predicted=predicted)))

    def own_key(waiting: WaitingRequest) -> float:
        return due.get(waiting.request.id, np.inf)

    key = np.array([[min(5.0, own_key(one)) for one in buckets.first_of_each(1)]])
    fleet = fleet_of([1] * 5 * ROWS_PER_JOINER, tokens=5000)  # it takes five joiners in a round
    joined = matched(fleet, buckets, key, own_key=own_key)
    assert joined == [(0, "due"), (0, "due between"), (0, "due, too"), (0, "short")]


def test_a_worker_tries_its_smallest_keys_only() -> None:
    # too long to join a running row
    long = [(length, predicted) for length in (10, 20) for predicted in (195, 250, 350, 500)]
    assert len(long) == KEYS_TRIED
    buckets, fleet = buckets_of([*long, (40, 10)]), fleet_of([10])
    assert matched(fleet, buckets, np.array([[2.0] * KEYS_TRIED + [3.0]])) == []
    assert matched(fleet, buckets, np.array([[2.0] * (KEYS_TRIED - 1) + [4.0, 3.0]])) == [(0, "08")]


def test_of_many_workers_those_with_the_smallest_keys_are_tried() -> None:
    workers: list[list[int]] = [[] for _ in range(WORKERS_TRIED + 2)]
    key = np.arange(float(len(workers)), 0.0, -1.0)[:, None]
    assert matched(fleet_of(*workers), buckets_of([(10, 10), (10, 10)]), key) == [(257, "00"), (256, "01")]


def test_a_round_adds_a_quarter_to_the_rows_of_a_worker() -> None:
    fleet, key = fleet_of([1] * 3 * ROWS_PER_JOINER, tokens=1000), np.array([[1.0, 3.0, 2.0]])
    assert matched(fleet, buckets_of(THREE), key) == [(0, "00"), (0, "02"), (0, "01")]
    assert len(matched(fleet_of([1] * 2 * ROWS_PER_JOINER, tokens=1000), buckets_of(THREE), key)) == 2


def test_the_next_of_a_bucket_goes_when_its_later_arrival_is_its_turn() -> None:
    lengths = [(10, 10), (20, 10), (10, 10), (10, 10)]  # the last two came 2 and 3 s after their bucket's first
    joined = matched(
        fleet_of([1] * 4 * ROWS_PER_JOINER, tokens=1000), buckets_of(lengths, at=1.0), np.array([[1.0, 3.5]])
    )
    assert joined == [(0, "00"), (0, "02"), (0, "01"), (0, "03")]


def test_what_joined_before_it_in_the_round_leaves_no_memory() -> None:
    # ten rows of 2 tokens; beside one of 15 more the second does not fit: 12 · (15 + 2) are more than 200
    joined = matched(fleet_of([1] * 10), buckets_of([(15, 2), (12, 2)]), np.array([[1.0, 2.0]]))
    assert joined == [(0, "00")]


def test_a_round_ends_when_its_caller_says_so() -> None:
    fleet, key = fleet_of([], []), np.array([[1.0, 2.0, 3.0], [5.0, 4.0, 3.5]])
    assert matched(fleet, buckets_of(THREE), key, at_most=1) == [(0, "00")]


def test_rows_and_joiner_must_fit_padded_to_the_longest() -> None:
    fleet = FleetArrays([running(130, (40, 10)), running(84, (40, 10)), running(83, (40, 10))])
    # two rows of 40 + 2 tokens; a joiner of 60 pads both to 62
    two = heads_of((10, 5), (60, 5))
    assert fits_now(fleet, two, np.arange(3)).tolist() == [[True, True], [True, False], [False, False]]


def test_an_idle_worker_takes_what_it_holds_to_its_end_and_the_largest_anything() -> None:
    fleet = FleetArrays([running(100), running(200)])
    three = heads_of((60, 30), (60, 50), (60, 500))
    assert fits_now(fleet, three, np.arange(2)).tolist() == [[True, False, False], [True, True, True]]
    assert fits_to_the_end(fleet, three, np.array([1]), np.array([0]), np.array([2])).tolist() == [True]
    for worker, fitting in enumerate(([True, False, False], [True, True, True])):
        assert [admits(fleet, worker, a_request(length=60, predicted=more)) for more in (30, 50, 500)] == fitting


def test_the_predicted_future_must_fit() -> None:
    fleet = FleetArrays([running(120, (40, 10))])
    # 2 · 50 when both end; then 10 + 110 alone; 121; 2 · 61
    for (length, predicted), expected in (((10, 10), True), ((10, 110), True), ((10, 111), False), ((51, 10), False)):
        one = np.array([0])
        assert fits_to_the_end(fleet, heads_of((length, predicted)), one, one, one).tolist() == [expected]
        assert admits(fleet, 0, a_request(length=length, predicted=predicted)) == expected


def test_only_workers_that_could_admit_the_smallest_request_are_candidates() -> None:
    fleet = FleetArrays([running(84, (40, 10)), running(83, (40, 10)), running(99, (40, 10)), running(100, (40, 10))])
    assert candidate_workers(fleet, heads_of((10, 90), (60, 2))).tolist() == [0, 2, 3]  # 2 · (40 + 2) at once
    assert candidate_workers(fleet, heads_of((10, 90), (60, 10))).tolist() == [3]  # 2 · (40 + 10) before both end
    assert candidate_workers(FleetArrays([running(11), running(10)]), heads_of((10, 90))).tolist() == [0]


@examples(60)
@given(st.lists(ROWS, min_size=1, max_size=3), st.lists(LENGTHS, min_size=1, max_size=14), st.randoms())
def test_what_is_matched_fits_and_the_least_key_of_all_that_fit_is_matched_first(
    rows: list[list[int]], lengths: list[tuple[int, int]], random: Random
) -> None:
    fleet, buckets = fleet_of(*rows), buckets_of(lengths)
    ids = [waiting.request.id for bucket in buckets.bucket_keys() if (waiting := buckets.first(bucket))]
    key = np.array([[random.random() for _ in ids] for _ in rows])
    joined = matched(fleet, buckets, key)
    cached = [[length + 1 for length in one] for one in rows]
    for worker, request_id in joined:
        length, predicted = lengths[int(request_id)]
        assert would_fit(cached[worker], length, predicted)
        cached[worker].append(length)
    fitting = [(worker, column) for worker in range(len(rows)) for column in range(len(ids))]
    fitting = [
        (worker, column)
        for worker, column in fitting
        if would_fit([length + 1 for length in rows[worker]], *lengths[int(ids[column])])
    ]
    if fitting and len(ids) <= KEYS_TRIED:
        worker, request_id = joined[0]
        assert key[worker, ids.index(request_id)] == min(float(key[pair]) for pair in fitting)  # there may be ties


def would_fit(cached: list[int], length: int, predicted: int) -> bool:
    """Whether a worker of 200 tokens can hold a row beside rows that have one iteration left or joined just now."""
    if not cached:
        return length < 200  # all workers are equally large: an idle one takes anything
    size, longest = len(cached) + 1, max([length, *cached])
    return size * (longest + 2) <= 200 and length + predicted <= 200


def test_rows_in_paged_memory_must_fit_with_their_own_tokens() -> None:
    rows = [a_row(length=40, generated=0)]
    # 40 and 60 tokens with 2 more for each take 104; in blocks of 17 each row has 8 slots more
    fleet = FleetArrays(
        [
            a_paged_worker(104, rows),
            a_paged_worker(103, rows, name="v"),
            a_paged_worker(120, rows, block_tokens=17, name="u"),
            a_paged_worker(119, rows, block_tokens=17, name="t"),
        ]
    )
    assert fits_now(fleet, heads_of((60, 5)), np.arange(4)).tolist() == [[True], [False], [True], [False]]


def test_a_worker_of_which_each_place_is_taken_admits_nothing() -> None:
    rows = [a_row(length=40, generated=0)]
    fleet = FleetArrays([a_paged_worker(rows=rows, max_rows=1), a_paged_worker(rows=rows, max_rows=2, name="v")])
    assert candidate_workers(fleet, heads_of((10, 5))).tolist() == [1]
    assert [admits(fleet, worker, a_request()) for worker in (0, 1)] == [False, True]
