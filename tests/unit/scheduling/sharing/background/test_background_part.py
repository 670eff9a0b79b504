"""The background has the workers that others can spare, or a part of one: the less, the more the others hold."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.costs import ServingCurves
from scheduling.policy import RunningRow, Worker
from scheduling.sharing.background.background_part import (
    KEPT_BELOW,
    TAKEN_BELOW,
    BackgroundPart,
    ChangingPart,
    TypicalRow,
    background_part,
    workers_to_spare,
)
from tests.unit.scheduling.scheduling_builders import SLOPED, a_line, a_request, a_worker, examples

ROW = TypicalRow(length=10, remaining=90)


def others(count: int) -> tuple[RunningRow, ...]:
    """Rows that hold a hundred tokens each at their ends."""
    return tuple(RunningRow(a_request(f"other{n}", length=10, predicted=90), 0, 0.0) for n in range(count))


def filled(workers: Sequence[Worker], share: float = 0.6) -> Mapping[str, int]:
    """The bytes that the background may fill on each worker."""
    return background_part(workers, share, ROW).filled_bytes


def test_the_more_the_others_hold_the_less_the_background_may_fill() -> None:
    tokens = [sum(filled([a_worker(tokens=1000, rows=others(rows))], 0.5).values()) for rows in (0, 1, 2, 40)]
    assert tokens == [500, 325, 150, 0]  # half of 1000 less 3.5 times 0, 100, 200, 4000


@pytest.mark.parametrize(("fixed_s", "rows"), [(0.0, 1), (1.0, 3), (8.0, 6), (1000.0, 6)])
def test_beside_others_the_background_fills_no_more_than_nearly_all_throughput_takes(fixed_s: float, rows: int) -> None:
    """A step takes this and a second a row; the memory holds ten rows, of which the share is 6."""
    costs = ServingCurves(prefill=(0.0, 0.0, 0.0, 0.0), decode=(0.0, 1.0, 0.0, fixed_s))
    assert filled([a_worker(tokens=1000, costs=costs)]) == {"w": 100 * rows}
    fleet = [a_worker(name, tokens=1000, costs=costs) for name in "ab"]
    assert filled(fleet) == {"a": 1000}  # where the others are not, throughput is all that counts


def test_workers_of_every_ability_serve_the_background_the_largest_first() -> None:
    small, large = a_worker("a", tokens=100), a_worker("b", tokens=300)
    unable = replace(a_worker("c", tokens=200), lacks=frozenset({"logprobs"}))
    assert filled([small, large, unable], 0.5) == {"b": 300, "c": 100}


def test_the_background_has_workers_where_others_are_not_and_waits_until_they_are_gone() -> None:
    line = RunningRow(a_line("line"), 1, 0.0)
    unused, used = a_worker("b"), a_worker("c", rows=[line])
    shared = [a_worker(name, rows=others(1)) for name in ("a", "d")]
    assert list(filled([unused, used, *shared])) == ["c", "b"]
    part = background_part([used, *shared], 0.6, ROW)
    assert part == BackgroundPart(frozenset({"c", "a"}), {"c": 10_000})


def fleet_of(in_use: int, count: int) -> list[Worker]:
    """Workers, some of them with a background row."""
    line = RunningRow(a_line("line"), 1, 0.0)
    return [a_worker(f"w{n}", 10_000, SLOPED, rows=[line] if n < in_use else []) for n in range(count)]


@examples(60)
@given(
    st.integers(1, 9),
    st.integers(0, 9),
    st.integers(0, 60),
    st.sampled_from([0.1, 0.6, 1.0]),
    st.sampled_from([1.0, 2.0]),
)
def test_it_has_the_most_workers_that_keep_the_others_iterations_short(
    count: int, in_use: int, rows: int, share: float, growth: float
) -> None:
    first, *others_of_fleet = fleet_of(in_use, count)
    fleet = [replace(first, rows=first.rows + others(rows)), *others_of_fleet]
    spared = workers_to_spare(fleet, share, growth)

    def iteration_s(workers: int) -> float:  # 10 cached tokens, and a prefill of 10 for 90 tokens
        size = growth * rows / workers
        return size * 10 * 3e-6 + size * 8e-4 + 0.0436 + size * (10 * 2e-4 + 0.0436) / 90

    def keeps(one: int) -> bool:
        most = 1 + share * (KEPT_BELOW if one <= in_use else TAKEN_BELOW)
        return iteration_s(count - one) <= most * iteration_s(count)

    assert spared == (max((one for one in range(1, count) if keeps(one)), default=0) if rows else count - 1)


@examples(60)
@given(st.integers(1, 6), st.lists(st.integers(0, 12), max_size=6))
def test_there_is_always_a_part_while_the_others_leave_memory(count: int, rows: list[int]) -> None:
    fleet = [a_worker(f"w{n}", 10_000, SLOPED, rows=others(rows[n] if n < len(rows) else 0)) for n in range(count)]
    held = sum(len(worker.rows) for worker in fleet) * 100
    part = background_part(fleet, 0.6, ROW)
    assert part.own or part.filled_bytes or 3.5 * held >= 10_000 * count - 1


def test_a_worker_is_kept_through_a_burst_and_given_when_the_others_stay_few() -> None:
    part = ChangingPart(0.6)
    part.others_came(0.0)

    def own(rows: int, at: float) -> int:
        workers = [a_worker("a", 100_000, SLOPED, rows=others(rows)), a_worker("b", 100_000, SLOPED)]
        return len(part.at(workers, [a_line("line", 90)], at).own)

    assert [own(4, 0.0), own(60, 1.0), own(4, 2.0), own(4, 19.0)] == [1, 0, 0, 0]
    part.others_came(100.0)
    assert own(4, 110.0) == 1
    assert part.at([a_worker()], [a_line("line")], 200.0) == BackgroundPart(frozenset(), {"w": 10_000})
