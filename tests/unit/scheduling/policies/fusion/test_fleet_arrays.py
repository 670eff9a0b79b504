from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.kv_memory import KvMemory
from scheduling.policies.fusion.fleet_arrays import (
    BUSY_SHARE,
    FleetArrays,
    FutureMemory,
    MemoryRules,
    peak_tokens,
)
from scheduling.policy import RunningRow
from scheduling.request import RowLength
from tests.unit.scheduling.scheduling_builders import SLOPED, a_paged_worker, a_request, a_row, a_worker, examples

RECTANGLE, PAGED = KvMemory(1, 1), KvMemory(1, 1, paged=True, block_tokens=16)
MEMORIES = st.sampled_from(
    [RECTANGLE, PAGED, KvMemory(1, 4, False, 1, None, 3, 20), KvMemory(1, 4, True, 16, None, 4, 32)]
)
ROWS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=0, max_size=8)


def future_of(*workers: list[tuple[int, int]], memory: KvMemory = RECTANGLE) -> FutureMemory:
    width = max(len(rows) for rows in workers) + 1
    cached, remaining = np.zeros((len(workers), width)), np.full((len(workers), width), -np.inf)
    for worker, rows in enumerate(workers):
        for row, (tokens, left) in enumerate(rows):
            cached[worker, row], remaining[worker, row] = tokens, left
    return FutureMemory.from_rows(cached, remaining, MemoryRules.of([memory] * len(workers)))


def peak_of(rows: list[tuple[int, int]], memory: KvMemory = RECTANGLE) -> float:
    cached, remaining = np.array(rows, np.float64).T
    return peak_tokens(cached, remaining, memory)


def peak_step_by_step(rows: list[tuple[int, int]], memory: KvMemory) -> float:
    """Decode one token at a time; finished rows leave, the others are padded to the longest unless memory is paged."""
    most, iterations = 0.0, 0
    while left := [(cached, remaining) for cached, remaining in rows if remaining > iterations]:
        iterations += 1
        tokens = [cached + iterations for cached, _ in left]
        most = max(most, memory.rows_tokens(len(left), max(tokens), sum(tokens)))
    return most


@examples(30)
@given(ROWS.filter(bool), MEMORIES)
def test_the_peak_is_that_of_decoding_step_by_step(rows: list[tuple[int, int]], memory: KvMemory) -> None:
    assert peak_of(rows, memory) == peak_step_by_step(rows, memory)


@examples(30)
@given(ROWS, ROWS, st.integers(1, 40), st.integers(1, 40), MEMORIES)
def test_with_a_joiner_it_is_too(
    one: list[tuple[int, int]], other: list[tuple[int, int]], cached: int, remaining: int, memory: KvMemory
) -> None:
    future = future_of(one, other, memory=memory)
    peaks = future.peaks_with(np.array([1, 0]), np.array([cached] * 2), np.array([remaining] * 2))
    assert peaks.tolist() == [peak_step_by_step([*rows, (cached, remaining)], memory) for rows in (other, one)]


def test_running_rows_are_predicted_from_what_they_have_generated_and_never_beyond_their_limit() -> None:
    outlived = RunningRow(a_request("outlived", length=5, predicted=10, limit=1024), 40, 0.0)
    limited = RunningRow(a_request("limited", length=5, predicted=50, limit=45), 40, 0.0)
    fleet = FleetArrays([a_worker(rows=[outlived, limited]), a_worker("idle")])
    assert fleet.cached[0, :2].tolist() == [45, 45]
    # one more token, because the outlived prediction was certain and says nothing; 45 - 40 tokens up to the limit
    assert fleet.remaining[0, :2].tolist() == [1, 5]
    assert (fleet.size.tolist(), fleet.longest.tolist()) == ([2, 0], [45, 0])
    assert np.isneginf(fleet.remaining[1]).all()


def test_a_row_predicted_again_takes_what_that_prediction_leaves() -> None:
    row = RunningRow(RowLength(30, 70, 90).of(a_request("again", length=5, predicted=10)), 30, 0.0)
    fleet = FleetArrays([a_worker(rows=[row])])
    assert fleet.remaining[0, 0] == pytest.approx(70 - 30)


@examples(100)
@given(ROWS, st.integers(1, 90), st.integers(0, 400), MEMORIES, st.sampled_from([None, 1, 4]))
def test_one_row_fits_by_itself_as_it_does_among_many(
    rows: list[tuple[int, int]], prefill: int, tokens: int, memory: KvMemory, max_rows: int | None
) -> None:
    memory = replace(memory, theta_bytes=tokens * memory.delta_bytes, max_rows=max_rows)
    running = [a_row(str(n), length, predicted=left) for n, (length, left) in enumerate(rows)]
    fleet = FleetArrays([replace(a_worker(rows=running), memory=memory)])
    among = fleet.fits_beside(np.array([0]), np.array([[float(prefill), 1.0]]))
    assert fleet.fits_one_more(0, prefill) == among[0, 0]


def test_a_joiner_counts_among_the_rows_of_its_worker_at_once() -> None:
    fleet = FleetArrays([a_worker(tokens=130, rows=[a_row(length=39)])])
    assert [fleet.fits_one_more(0, prefill) for prefill in (63, 64)] == [True, False]  # 2 · (63 + 2) of 130 tokens
    before = fleet.future.peaks_with(np.array([0]), np.array([10.0]), np.array([5.0]))
    fleet.join(0, a_request("a", length=20))
    fleet.join(0, a_request("b", length=50))
    assert (fleet.size.tolist(), fleet.joiners.tolist(), fleet.longest.tolist()) == ([3], [2], [50])
    assert not fleet.fits_one_more(0, 10)  # 4 · (50 + 2)
    assert fleet.future.peaks_with(np.array([0]), np.array([10.0]), np.array([5.0])) > before


@given(
    rows=st.lists(ROWS, min_size=1, max_size=4),
    joins=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40), st.booleans()), max_size=12),
)
@examples(200)
def test_rows_sorted_after_some_joins_are_as_if_all_were_sorted_anew(
    rows: list[list[tuple[int, int]]], joins: list[tuple[int, int, bool]]
) -> None:
    fleet = FleetArrays(
        [
            a_paged_worker(
                10_000, name=f"w{number}", rows=[a_row(f"{n}", length=one) for n, (one, _) in enumerate(own)]
            )
            for number, own in enumerate(rows)
        ]
    )
    for number, (worker, length, reads) in enumerate(joins):
        fleet.join(worker % len(fleet), a_request(f"r{number}", length=length, predicted=length))
        if reads:
            anew = FutureMemory.from_rows(fleet.cached, fleet.remaining, fleet.rules)
            for name in ("remaining", "longest", "total"):
                assert np.array_equal(getattr(fleet.future, name), getattr(anew, name))


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["w1", "w2", "w3"]),
            st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40)), max_size=6),
            min_size=1,
        ),
        min_size=2,
        max_size=6,
    )
)
@examples(100)
def test_a_fleet_read_by_its_changes_is_as_if_read_anew(decisions: list[dict[str, list[tuple[int, int]]]]) -> None:
    requests = [a_request(str(number), length=7 * number + 1, predicted=number * 9 + 2) for number in range(6)]
    earlier: FleetArrays | None = None
    for rows_of in decisions:
        workers = [
            a_worker(name, rows=[RunningRow(requests[request], generated, 0.0) for request, generated in rows])
            for name, rows in rows_of.items()
        ]
        anew, earlier = FleetArrays(workers), FleetArrays(workers, earlier)
        for field in ("cached", "remaining", "longest", "total", "size"):
            assert np.array_equal(getattr(earlier, field), getattr(anew, field))


def test_a_join_costs_the_fixed_time_of_a_prefill_for_each_row_that_ran_before() -> None:
    fleet = FleetArrays([a_worker(costs=SLOPED, rows=[a_row(str(number)) for number in range(3)])])
    fleet.join(0, a_request())
    assert fleet.join_s().tolist() == pytest.approx([3 * 0.0436])
    # four rows of 11 tokens: 43.6 + 4 · (0.8 + 11 · 0.003) ms
    assert fleet.step_s().tolist() == pytest.approx([0.0436 + 4 * (0.0008 + 11 * 3e-6)])


def test_an_iteration_over_paged_memory_reads_each_rows_own_tokens() -> None:
    rows = [a_row("long", length=299), a_row("short", length=99)]  # 300 and 100 tokens with the one generated
    padded, paged = (
        FleetArrays([a_worker(costs=SLOPED, rows=rows)]),
        FleetArrays([a_paged_worker(rows=rows, costs=SLOPED)]),
    )
    assert padded.step_s()[0] == pytest.approx(0.0436 + 2 * (0.0008 + 3e-6 * 300))
    assert paged.step_s()[0] == pytest.approx(0.0436 + 2 * 0.0008 + 3e-6 * 400)


def test_a_fixed_time_is_shared_by_as_many_tokens_as_rows_may_run() -> None:
    rows = [a_row("long", length=299), a_row("short", length=99)]
    assert FleetArrays([a_paged_worker(rows=rows, max_rows=8)]).shared_tokens.tolist() == [8 * 200]
    assert FleetArrays([a_paged_worker(max_rows=8)]).shared_tokens.tolist() == [10_000]


def test_a_busy_worker_has_as_many_rows_as_give_the_busy_share_of_what_any_number_would() -> None:
    fleet = FleetArrays([a_paged_worker(name=name) for name in ("busy", "flat", "steep")])
    fleet.d1, fleet.d3 = np.zeros(3), np.zeros(3)
    fleet.d4, fleet.d2 = np.array([9e-3, 9e-3, 1e-6]), np.array([6e-4, 0.0, 6e-4])
    fleet.limit_rows()
    rows = float(fleet.most_rows[0])
    # the tokens a second of `rows` rows are BUSY_SHARE of their limit
    assert rows / (9e-3 + rows * 6e-4) == pytest.approx(BUSY_SHARE / 6e-4)
    assert fleet.most_rows[1] > 10**6  # a row that costs nothing is always welcome
    assert fleet.most_rows[2] == 16  # never fewer, whatever costs were fitted
