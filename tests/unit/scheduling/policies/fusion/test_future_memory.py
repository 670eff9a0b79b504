import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.policies.fusion.future_memory import FutureMemory, peak
from tests.unit.scheduling.scheduling_builders import examples

ROWS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=0, max_size=8)


def future_of(*workers: list[tuple[int, int]]) -> FutureMemory:
    width = max(len(rows) for rows in workers) + 1
    cached, remaining = np.zeros((len(workers), width)), np.full((len(workers), width), -np.inf)
    for line, rows in enumerate(workers):
        for place, (tokens, left) in enumerate(rows):
            cached[line, place], remaining[line, place] = tokens, left
    return FutureMemory.of(cached, remaining)


def peak_of(rows: list[tuple[int, int]]) -> float:
    cached, remaining = np.array(rows, np.float64).T
    return peak(cached, remaining)


def peak_step_by_step(rows: list[tuple[int, int]]) -> int:
    """Decode one token at a time; what is done leaves, what is left is padded to the longest."""
    most, iterations = 0, 0
    while left := [(cached, remaining) for cached, remaining in rows if remaining > iterations]:
        iterations += 1
        most = max(most, len(left) * (max(cached for cached, _ in left) + iterations))
    return most


def test_the_peak_is_just_before_some_row_ends() -> None:
    # 3 rows of up to 10 + 2, then 2 of up to 10 + 5, then one of 4 + 30: 36, 30, 34
    assert peak_of([(10, 5), (4, 30), (8, 2)]) == 36


@examples(30)
@given(ROWS.filter(bool))
def test_the_peak_is_that_of_decoding_step_by_step(rows: list[tuple[int, int]]) -> None:
    assert peak_of(rows) == peak_step_by_step(rows)


@examples(30)
@given(ROWS, ROWS, st.integers(1, 40), st.integers(1, 40))
def test_with_a_joiner_it_is_too(
    one: list[tuple[int, int]], other: list[tuple[int, int]], cached: int, remaining: int
) -> None:
    peaks = future_of(one, other).peaks_with(np.array([1, 0]), np.array([cached] * 2), np.array([remaining] * 2))
    assert peaks.tolist() == [peak_step_by_step([*rows, (cached, remaining)]) for rows in (other, one)]


def test_rows_are_reserved_in_tokens_of_the_padded_batch() -> None:
    # beside one row of 100 + 10, a short row takes as much as the long one: 2 · 105; a long one makes both as long
    future = future_of([(100, 10)])
    assert future.peaks_with(np.array([0]), np.array([5.0]), np.array([5.0])).tolist() == [210]
    assert future.peaks_with(np.array([0]), np.array([200.0]), np.array([5.0])).tolist() == [410]
    assert pytest.approx(future.peaks_with(np.array([0]), np.array([5.0]), np.array([50.0]))) == [220]
