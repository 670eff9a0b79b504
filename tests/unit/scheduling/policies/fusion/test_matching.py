from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scheduling.costs import Floats
from scheduling.policies.fusion.fleet_arrays import FleetArrays
from scheduling.policies.fusion.length_buckets import LengthBuckets, WaitingRequest
from scheduling.policies.fusion.matching import GROWTH, TRIED, WORKERS_TRIED, best_pairs
from tests.unit.scheduling.scheduling_builders import a_request, a_row, a_worker, examples

LENGTHS = st.tuples(st.integers(1, 60), st.integers(1, 60))
ROWS = st.lists(st.integers(1, 60), max_size=4)
THREE = [(10, 10), (20, 10), (40, 10)]  # of three lanes


def lanes_of(lengths: list[tuple[int, int]], at: float = 0.0) -> LengthBuckets:
    """Requests of these lengths by the number of their lane's column; alike ones share a lane."""
    lanes = LengthBuckets()
    for number, (length, predicted) in enumerate(lengths):
        lanes.add(WaitingRequest(a_request(f"{number:02}", at=at * number, length=length, predicted=predicted)))
    return lanes


def fleet_of(*rows: list[int], tokens: int = 200) -> FleetArrays:
    """Workers with rows of these lengths, each about to end."""
    return FleetArrays([a_worker(tokens=tokens, rows=[a_row(length=row, predicted=2) for row in one]) for one in rows])


def matched(fleet: FleetArrays, lanes: LengthBuckets, key: Floats) -> list[tuple[int, str]]:
    """Workers and the requests that join them, in order."""
    joined = []
    for worker, waiting in best_pairs(fleet, lanes, np.arange(len(fleet)), key):
        fleet.join(worker, lanes.take(waiting.request.id).request)
        joined.append((worker, waiting.request.id))
    return joined


def test_a_request_goes_to_the_worker_where_its_key_is_least_and_each_empty_worker_takes_one() -> None:
    key = np.array([[1.0, 2.0, 3.0], [5.0, 4.0, 3.5]])
    assert matched(fleet_of([], []), lanes_of(THREE), key) == [(0, "00"), (1, "02")]
    key = np.array([[1.0, 9.0, 9.0], [9.0, 5.0, 9.0], [9.0, 4.0, 3.0]])
    assert matched(fleet_of([], [], []), lanes_of(THREE), key) == [(0, "00"), (2, "02"), (1, "01")]


def test_a_worker_tries_its_smallest_keys_only() -> None:
    long = [(length, predicted) for length in (10, 20) for predicted in (195, 250, 350, 500)]  # beside a row, too long
    assert len(long) == TRIED
    lanes, fleet = lanes_of([*long, (40, 10)]), fleet_of([10])
    assert matched(fleet, lanes, np.array([[2.0] * TRIED + [3.0]])) == []
    assert matched(fleet, lanes, np.array([[2.0] * (TRIED - 1) + [4.0, 3.0]])) == [(0, "08")]


def test_of_many_workers_those_with_the_smallest_keys_are_tried() -> None:
    workers: list[list[int]] = [[] for _ in range(WORKERS_TRIED + 2)]
    key = np.arange(float(len(workers)), 0.0, -1.0)[:, None]
    assert matched(fleet_of(*workers), lanes_of([(10, 10), (10, 10)]), key) == [(257, "00"), (256, "01")]


def test_a_round_adds_a_quarter_to_the_rows_of_a_worker() -> None:
    fleet, key = fleet_of([1] * 3 * GROWTH, tokens=1000), np.array([[1.0, 3.0, 2.0]])
    assert matched(fleet, lanes_of(THREE), key) == [(0, "00"), (0, "02"), (0, "01")]
    assert len(matched(fleet_of([1] * 2 * GROWTH, tokens=1000), lanes_of(THREE), key)) == 2


def test_the_next_of_a_lane_goes_when_its_later_arrival_is_its_turn() -> None:
    lengths = [(10, 10), (20, 10), (10, 10), (10, 10)]  # the last two came 2 and 3 s after their lane's first
    joined = matched(fleet_of([1] * 4 * GROWTH, tokens=1000), lanes_of(lengths, at=1.0), np.array([[1.0, 3.5]]))
    assert joined == [(0, "00"), (0, "02"), (0, "01"), (0, "03")]


def test_what_joined_before_it_in_the_round_leaves_no_room() -> None:
    # ten rows of 2 tokens; beside one of 15 more the second has no room: 12 · (15 + 2) are more than 200
    joined = matched(fleet_of([1] * 10), lanes_of([(15, 2), (12, 2)]), np.array([[1.0, 2.0]]))
    assert joined == [(0, "00")]


@examples(60)
@given(st.lists(ROWS, min_size=1, max_size=3), st.lists(LENGTHS, min_size=1, max_size=14), st.randoms())
def test_what_is_matched_fits_and_the_least_key_of_all_that_fit_is_matched_first(
    rows: list[list[int]], lengths: list[tuple[int, int]], random: Random
) -> None:
    fleet, lanes = fleet_of(*rows), lanes_of(lengths)
    ids = [waiting.request.id for name in lanes.names() if (waiting := lanes.first(name))]
    key = np.array([[random.random() for _ in ids] for _ in rows])
    joined = matched(fleet, lanes, key)
    cached = [[length + 1 for length in one] for one in rows]
    for worker, request_id in joined:
        length, predicted = lengths[int(request_id)]
        assert would_fit(cached[worker], length, predicted)
        cached[worker].append(length)
    fitting = [(worker, place) for worker in range(len(rows)) for place in range(len(ids))]
    fitting = [
        (worker, place)
        for worker, place in fitting
        if would_fit([length + 1 for length in rows[worker]], *lengths[int(ids[place])])
    ]
    if fitting and len(ids) <= TRIED:
        worker, place = min(fitting, key=lambda pair: float(key[pair]))
        assert joined[0] == (worker, ids[place])


def would_fit(cached: list[int], length: int, predicted: int) -> bool:
    """Of 200 tokens, next to rows that have one iteration left or joined just now."""
    if not cached:
        return length + 2 <= 200  # all workers are equally large: an idle one takes anything
    size, longest = len(cached) + 1, max([length, *cached])
    return size * (longest + 2) <= 200 and length + predicted <= 200
