"""Rows leave for a job that waits with far less than its share, and beside a small job whose rows they slow down."""

from scheduling.costs import ServingCurves
from scheduling.policies.wrapping.row_shares import (
    PROGRESS_TOKENS,
    limited_beside_small_jobs,
    most_rows_beside,
    rows_above,
    rows_making_way,
    shares_of,
)
from scheduling.policy import RunningRow
from tests.unit.scheduling.scheduling_builders import a_line, a_row, a_worker

A, B, C = ("a", ""), ("b", ""), ("a", "c")


def rows(tenant: str, count: int, generated: int = 1, before: int = 0, job: str = "") -> list[RunningRow]:
    """Rows that joined one after the other."""
    lines = [a_line(f"{tenant}{job}{n}", 90, tenant=tenant, job=job, generated=before) for n in range(count)]
    return [RunningRow(line, generated, float(n)) for n, line in enumerate(lines)]


def names(some: list[RunningRow]) -> list[str]:
    return [row.request.id for row in some]


def test_shares_are_by_the_weights_of_tenants_and_alike_for_a_tenants_jobs() -> None:
    shares = shares_of([A, B, C], lambda tenant: {"a": 1.0, "b": 3.0}[tenant])
    assert shares == {A: 0.125, C: 0.125, B: 0.75}


def test_the_newest_rows_make_way_for_a_job_that_has_less_than_half_of_its_share() -> None:
    shares = {A: 0.5, B: 0.5}
    assert names(rows_making_way(rows("a", 10), B, 3, shares)) == ["a9", "a8", "a7"]
    assert names(rows_making_way(rows("a", 10), B, 30, shares)) == ["a9", "a8", "a7", "a6", "a5"]
    assert len(rows_making_way([*rows("a", 8), *rows("b", 1)], B, 30, shares)) == 3
    assert rows_making_way([*rows("a", 6), *rows("b", 3)], B, 30, shares) == []
    assert rows_making_way([], B, 30, shares) == []


def test_the_job_furthest_above_its_share_gives_its_rows_first() -> None:
    shares = {A: 0.25, C: 0.25, B: 0.5}
    leaving = rows_making_way([*rows("a", 4), *rows("a", 8, job="c")], B, 5, shares)
    assert names(leaving) == ["ac7", "ac6", "ac5", "ac4", "ac3"]


def test_a_row_that_left_before_leaves_again_only_after_progress() -> None:
    shares = {A: 0.5, B: 0.5}
    assert rows_making_way(rows("a", 4, generated=10, before=9), B, 2, shares) == []
    again = rows("a", 4, generated=9 + PROGRESS_TOKENS, before=9)
    assert names(rows_making_way(again, B, 2, shares)) == ["a3", "a2"]
    never_left = rows("a", 1, job="x")
    assert names(rows_making_way([*again, *never_left], B, 1, shares | {("a", "x"): 0.0})) == ["a3"]


# an iteration takes 1 s and an eighth of a second more for each row
SLOWED = ServingCurves(prefill=(0.0, 0.0, 0.0, 0.0), decode=(0.0, 0.125, 0.0, 1.0))


def test_beside_a_small_job_run_so_many_rows_that_its_iterations_take_no_longer_than_its_share_is_small() -> None:
    worker = a_worker(costs=SLOWED, rows=[*rows("a", 20), *rows("b", 2)])
    most = most_rows_beside(worker, {}, {A: 0.5, B: 0.5})
    assert most == 7  # 1.25 s alone; 0.75 of twice that are 1.875 s
    assert names(rows_above(worker, most, {A: 0.5, B: 0.5}))[:2] == ["a19", "a18"]
    assert len(rows_above(worker, most, {A: 0.5, B: 0.5})) == 15


def test_long_rows_that_left_for_a_small_job_do_not_join_again_at_once() -> None:
    reading = ServingCurves(prefill=(0.0, 0.0, 0.0, 0.0), decode=(0.001, 0.125, 0.0, 1.0))
    worker, shares = a_worker(costs=reading, rows=[*rows("a", 20), *rows("b", 2)]), {A: 0.5, B: 0.5}
    length = 10 + 1  # 1 + 2 · (0.125 + 0.011) s alone, 1.5 times that are 1.908 s
    assert {row.request.length + row.generated for row in worker.rows} == {length}
    assert most_rows_beside(worker, {}, shares) == 6  # 0.908 / 0.136
    (limited,) = limited_beside_small_jobs([worker], {}, shares, joining_tokens=1000)
    assert limited.memory.max_rows == 2  # the small job's own: of rows of 1,000 tokens each takes 1.125 s


def test_a_worker_without_a_small_job_has_no_limit() -> None:
    worker = a_worker(costs=SLOWED, rows=rows("a", 4))
    assert limited_beside_small_jobs([worker], {}, {A: 1.0}, joining_tokens=1000) == [worker]


def test_rows_of_interactive_requests_run_in_any_case() -> None:
    others = [a_row(f"other{n}") for n in range(10)]
    worker = a_worker(costs=SLOWED, rows=[*rows("a", 20), *rows("b", 2), *others])
    assert most_rows_beside(worker, {}, {A: 0.5, B: 0.5}) == 22  # 2.5 s with the others; 3.75 s
    assert set(names(rows_above(worker, 22, {A: 0.5, B: 0.5}))) == {f"a{n}" for n in range(10, 20)}


def test_where_rows_make_an_iteration_no_longer_a_small_job_needs_no_limit() -> None:
    free = ServingCurves(prefill=(0.0, 0.0, 0.0, 0.0), decode=(0.0, 0.0, 0.0, 1.0))
    worker = a_worker(costs=free, rows=[*rows("a", 20), *rows("b", 2)])
    assert most_rows_beside(worker, {}, {A: 0.5, B: 0.5}) == worker.memory.most_rows


def test_a_job_with_its_share_of_all_lines_needs_no_protection() -> None:
    shares = {A: 0.5, B: 0.5}
    worker = a_worker(costs=SLOWED, rows=[*rows("a", 10), *rows("b", 4)])
    assert most_rows_beside(worker, {}, shares) == 10  # the other's four lines: 1.5 s alone, 2.25 s
    assert most_rows_beside(worker, {B: 100}, shares) == 19  # the ten lines: 2.25 s alone, 3.375 s
    assert most_rows_beside(worker, {B: 6}, shares) is None
    assert most_rows_beside(a_worker(costs=SLOWED, rows=rows("a", 10)), {}, shares) is None


def test_rows_that_left_for_a_small_job_do_not_come_back_because_it_is_no_longer_small_beside_the_others() -> None:
    shares = {A: 0.5, B: 0.5}
    few = a_worker(costs=SLOWED, rows=[*rows("a", 20), *rows("b", 2)])
    most = most_rows_beside(few, {}, shares)
    assert most is not None
    left = a_worker(costs=SLOWED, rows=[*rows("a", 2), *rows("b", 2)])  # the small job has half of these
    (limited,) = limited_beside_small_jobs([left], {A: 18}, shares, joining_tokens=11)
    assert limited.memory.max_rows == most
