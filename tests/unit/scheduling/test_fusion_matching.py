from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scheduling_builders import a_request, a_row, a_worker, examples

from scheduling.fusion.fleet import Fleet
from scheduling.fusion.lanes import Heads, Waiting
from scheduling.fusion.matching import TRIED, best_pairs

LENGTHS = st.tuples(st.integers(1, 60), st.integers(1, 60))
ROWS = st.lists(st.integers(1, 60), max_size=4)


def heads_of(lengths: list[tuple[int, int]]) -> Heads:
    return Heads.of([Waiting(a_request(length=length, predicted=predicted)) for length, predicted in lengths])


def fleet_of(*rows: list[int], tokens: int = 200) -> Fleet:
    """Workers with rows of these lengths, each about to end."""
    return Fleet([a_worker(tokens=tokens, rows=[a_row(length=row, predicted=2) for row in one]) for one in rows])


def would_fit(fleet: Fleet, worker: int, length: int, predicted: int) -> bool:
    """Decoded step by step: the worker's rows have one iteration left."""
    rows = fleet.workers[worker].rows
    longest = max([length, *(row.request.length + 1 for row in rows)])
    size, capacity = len(rows) + 1, int(fleet.capacity[worker])
    if not rows:
        return length + 2 <= capacity  # all workers are equally large: an idle one takes anything
    return size * (longest + 2) <= capacity and length + predicted <= capacity


def test_a_request_goes_to_the_worker_where_its_key_is_least_and_each_worker_takes_one() -> None:
    fleet, heads = fleet_of([], []), heads_of([(10, 10), (10, 10)])
    assert best_pairs(fleet, heads, np.array([[1.0, 2.0], [5.0, 4.0]])) == [(0, 0), (1, 1)]


def test_a_request_that_a_worker_without_one_should_rather_take_is_left_to_the_next_round() -> None:
    fleet, heads = fleet_of([], [], []), heads_of([(10, 10), (10, 10), (10, 10)])
    # 1 would take its second choice only, which 2 wants even more but for its first choice
    key = np.array([[1.0, 9.0, 9.0], [9.0, 5.0, 9.0], [9.0, 4.0, 3.0]])
    assert best_pairs(fleet, heads, key) == [(0, 0), (2, 2), (1, 1)]
    key = np.array([[1.0, 9.0, 9.0], [9.0, 5.0, 9.0], [9.0, 4.0, 9.0]])
    assert best_pairs(fleet, heads, key) == [(0, 0), (2, 1), (1, 1)]


def test_a_request_is_left_to_the_next_round_for_a_worker_that_wants_it_more_but_has_not_tried_it() -> None:
    fleet = fleet_of([], [], [10])
    heads = heads_of([(10, 10)] + [(10, 195)] * TRIED + [(10, 10)])  # beside a row, 10 + 195 tokens exceed 200
    key = np.full((3, 10), 9.0)
    key[0, 0], key[1, 9], key[2, 9] = 1.0, 5.0, 3.0
    key[2, 1:9] = 2.0  # what the third tries, in vain
    assert best_pairs(fleet, heads, key) == [(0, 0)]
    key[0] = np.inf
    assert best_pairs(fleet, heads, key) == [(1, 9)]  # the least key left always goes


@examples(60)
@given(st.lists(ROWS, min_size=1, max_size=3), st.lists(LENGTHS, min_size=1, max_size=14), st.randoms())
def test_what_is_matched_fits_and_the_least_key_of_all_that_fit_is_matched_first(
    rows: list[list[int]], lengths: list[tuple[int, int]], random: Random
) -> None:
    fleet, heads = fleet_of(*rows), heads_of(lengths)
    key = np.array([[random.random() for _ in lengths] for _ in rows])
    pairs = best_pairs(fleet, heads, key)
    assert len({worker for worker, _ in pairs}) == len(pairs)
    assert all(would_fit(fleet, worker, *lengths[place]) for worker, place in pairs)
    fitting = [(worker, place) for worker in range(len(rows)) for place in range(len(lengths))]
    fitting = [pair for pair in fitting if would_fit(fleet, pair[0], *lengths[pair[1]])]
    if fitting and len(lengths) <= TRIED:
        assert pairs[0] == min(fitting, key=lambda pair: float(key[pair]))
