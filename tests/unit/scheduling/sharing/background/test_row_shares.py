"""Rows leave for a job that waits with far less than its share, and beside a small job whose rows they slow down."""

from scheduling.costs import ServingCurves
from scheduling.policy import RunningRow
from scheduling.request import Job
from scheduling.sharing.background.row_shares import (
    ASKED_AGAIN_S,
    JOIN_S,
    PROGRESS_TOKENS,
    background_rows,
    is_prefilling,
    joined_at,
    limited_beside_small_jobs,
    places_beside_small_jobs,
    rows_above,
    rows_beside_small_jobs,
    rows_making_way,
    rows_wanted,
    shares_of,
)
from tests.unit.scheduling.scheduling_builders import a_line, a_row, a_worker

A, B, C = Job("a", ""), Job("b", ""), Job("a", "c")


def rows(tenant: str, count: int, generated: int = 1, before: int = 0, job: str = "") -> list[RunningRow]:
    """Rows that joined one after the other."""
    lines = [a_line(f"{tenant}{job}{n}", 90, tenant=tenant, job=job, generated=before) for n in range(count)]
    return [RunningRow(line, generated, float(n)) for n, line in enumerate(lines)]


def names(some: list[RunningRow]) -> list[str]:
    return [row.request.id for row in some]


def test_rows_of_both_background_tiers_are_in_the_background() -> None:
    rows_of_tiers = [a_row(tier, tier=tier) for tier in ("flex", "default", "off_peak", "priority")]
    assert names(background_rows([a_worker(rows=rows_of_tiers)])) == ["flex", "off_peak"]


def test_shares_are_by_the_weights_of_tenants_and_alike_for_a_tenants_jobs() -> None:
    shares = shares_of([A, B, C], lambda tenant: {"a": 1.0, "b": 3.0}[tenant])
    assert shares == {A: 0.125, C: 0.125, B: 0.75}


def test_a_job_with_less_than_half_of_its_share_of_the_rows_wants_the_difference() -> None:
    shares = {A: 0.5, B: 0.5}
    assert rows_wanted(rows("a", 10), B, 3, shares) == 3
    assert rows_wanted(rows("a", 10), B, 30, shares) == 5
    assert rows_wanted([*rows("a", 8), *rows("b", 1)], B, 30, shares) == 3
    assert rows_wanted([*rows("a", 6), *rows("b", 3)], B, 30, shares) == 0
    assert rows_wanted([], B, 30, shares) == 0


def test_a_worker_is_prefilling_while_its_joiners_have_no_new_token_and_take_long() -> None:
    costs = ServingCurves(prefill=(0.0, JOIN_S / 4, 0.0, 0.0), decode=(0.0, 0.0, 0.0, 0.1))
    few, many = (a_worker(costs=costs, rows=rows("a", count, generated=0)) for count in (3, 4))
    assert [is_prefilling(few), is_prefilling(many)] == [False, True]
    assert not is_prefilling(a_worker(costs=costs, rows=rows("a", 9)))
    assert is_prefilling(a_worker(costs=costs, rows=rows("a", 4, generated=30, before=30)))
    assert not is_prefilling(a_worker(costs=costs, rows=[a_row(generated=0)] * 9))
    assert joined_at([few, many], 7.0) == 7.0 + ASKED_AGAIN_S
    assert joined_at([few], 7.0) is None


def test_the_newest_rows_make_way() -> None:
    shares = {A: 0.5, B: 0.5}
    assert names(rows_making_way(rows("a", 10), B, 3, shares)) == ["a9", "a8", "a7"]
    assert len(rows_making_way([*rows("a", 8), *rows("b", 1)], B, 3, shares)) == 3
    assert rows_making_way(rows("a", 10), B, 0, shares) == []


def test_the_job_furthest_above_its_share_gives_its_rows_first() -> None:
    shares = {A: 0.25, C: 0.25, B: 0.5}
    leaving = rows_making_way([*rows("a", 4), *rows("a", 8, job="c")], B, 5, shares)
    assert names(leaving) == ["ac7", "ac6", "ac5", "ac4", "ac3"]


def test_a_row_leaves_only_after_progress() -> None:
    shares = {A: 0.5, B: 0.5}
    assert rows_making_way(rows("a", 4, generated=10, before=9), B, 2, shares) == []
    assert rows_making_way(rows("a", 4, generated=0), B, 2, shares) == []
    again = rows("a", 4, generated=9 + PROGRESS_TOKENS, before=9)
    assert names(rows_making_way(again, B, 2, shares)) == ["a3", "a2"]
    never_left = rows("a", 1, job="x")
    assert names(rows_making_way([*again, *never_left], B, 1, shares | {Job("a", "x"): 0.0})) == ["a3"]


# an iteration takes 1 s and an eighth of a second more for each row
SLOWED = ServingCurves(prefill=(0.0, 0.0, 0.0, 0.0), decode=(0.0, 0.125, 0.0, 1.0))


def test_beside_a_small_job_run_so_many_rows_that_its_iterations_take_no_longer_than_its_share_is_small() -> None:
    worker = a_worker(costs=SLOWED, rows=[*rows("a", 20), *rows("b", 2)])
    most = rows_beside_small_jobs(worker, {}, {A: 0.5, B: 0.5})[B]
    assert most == 8  # 1.25 s alone; 0.8 of twice that are 2 s
    assert names(rows_above(worker, {B: most}, {A: 0.5, B: 0.5}))[:2] == ["a19", "a18"]
    assert len(rows_above(worker, {B: most}, {A: 0.5, B: 0.5})) == 14


def test_the_prefills_of_rows_that_join_slow_a_small_job_down_too() -> None:
    prefilling = ServingCurves(prefill=(0.0, 0.0, 0.0, 11.25), decode=(0.0, 0.125, 0.0, 1.0))
    worker = a_worker(costs=prefilling, rows=[*rows("a", 20), *rows("b", 2)])
    # 2 s as above; each row of 90 tokens takes 0.125 s of an iteration, and a ninetieth of a prefill between two
    joiners = [a_line("more", 90, tenant="a")]
    assert rows_beside_small_jobs(worker, {}, {A: 0.5, B: 0.5}, joiners)[B] == 2 + 3
    assert rows_beside_small_jobs(worker, {}, {A: 0.5, B: 0.5})[B] == 2 + 6  # the prefills of the others are over


def test_all_lines_of_a_small_job_have_a_place() -> None:
    shares = {A: 0.5, B: 0.5}
    worker = a_worker(costs=SLOWED, rows=[*rows("a", 20), *rows("b", 2)])
    most = rows_beside_small_jobs(worker, {B: 8}, shares)[B]
    assert most == 2 + 10  # ten lines take 2.25 s alone, 3.5 s beside ten others
    assert limited_beside_small_jobs([worker], {B: 8}, shares, [a_line("more", tenant="b")]) == [worker]


def test_a_small_jobs_rows_do_not_leave_for_rows_that_would_leave_for_them() -> None:
    shares, more = {A: 0.5, B: 0.5}, [a_line("more", 90, tenant="a")]
    seven, fourteen = ([*rows("a", count), *rows("b", 8)] for count in (7, 14))
    # eight lines take 2 s alone, 3.125 s beside nine others
    assert places_beside_small_jobs([a_worker(costs=SLOWED, rows=seven)], {A: 10}, shares, more) == {B: 2}
    assert places_beside_small_jobs([a_worker(costs=SLOWED, rows=fourteen)], {A: 10}, shares, more) == {B: 0}
    few = [*rows("a", 1), *rows("b", 8)]
    assert len(rows_making_way(few, A, 3, shares)) == 3
    assert len(rows_making_way(few, A, 3, shares, {B: 2})) == 2
    assert rows_making_way(few, A, 3, shares, {B: 0}) == []


def test_no_row_of_a_small_job_leaves_for_its_own_sake() -> None:
    worker = a_worker(costs=SLOWED, rows=[*rows("a", 2), *rows("b", 8)])
    assert names(rows_above(worker, {B: 9}, {A: 0.5, B: 0.5})) == ["a1"]
    assert names(rows_above(worker, {B: 5}, {A: 0.5, B: 0.5})) == ["a1", "a0"]
    assert rows_above(a_worker(rows=rows("b", 8)), {B: 8}, {A: 0.5, B: 0.5}) == []


def test_long_rows_that_left_for_a_small_job_do_not_join_again_at_once() -> None:
    reading = ServingCurves(prefill=(0.0, 0.0, 0.0, 0.0), decode=(0.001, 0.125, 0.0, 1.0))
    worker, shares = a_worker(costs=reading, rows=[*rows("a", 20), *rows("b", 2)]), {A: 0.5, B: 0.5}
    length = 10 + 1  # 1 + 2 · (0.125 + 0.011) s alone, 1.6 times that are 2.035 s
    assert {row.request.length + row.generated for row in worker.rows} == {length}
    assert rows_beside_small_jobs(worker, {}, shares)[B] == 2 + 5  # (2.035 - 1.272) / 0.136
    (limited,) = limited_beside_small_jobs([worker], {}, shares, [a_line("long", 90, tenant="a", length=1000)])
    assert limited.memory.max_rows == 2 + 1  # beside a row of 1,000 tokens each takes 1.125 s; others have one at least


def test_a_worker_without_a_small_job_has_no_limit() -> None:
    worker = a_worker(costs=SLOWED, rows=rows("a", 4))
    assert limited_beside_small_jobs([worker], {}, {A: 1.0}, [a_line("more")]) == [worker]


def test_a_worker_with_a_small_job_alone_has_no_limit() -> None:
    worker = a_worker(costs=SLOWED, rows=rows("b", 2))
    (limited,) = limited_beside_small_jobs([worker], {A: 10}, {A: 0.5, B: 0.5}, [])
    assert limited.memory.max_rows == worker.memory.most_rows


def test_rows_of_interactive_requests_run_in_any_case() -> None:
    others = [a_row(f"other{n}") for n in range(10)]
    worker = a_worker(costs=SLOWED, rows=[*rows("a", 20), *rows("b", 2), *others])
    assert rows_beside_small_jobs(worker, {}, {A: 0.5, B: 0.5})[B] == 12 + 12  # 2.5 s with the others; 4 s
    assert set(names(rows_above(worker, {B: 24}, {A: 0.5, B: 0.5}))) == {f"a{n}" for n in range(12, 20)}


def test_where_rows_make_an_iteration_no_longer_a_small_job_needs_no_limit() -> None:
    free = ServingCurves(prefill=(0.0, 0.0, 0.0, 0.0), decode=(0.0, 0.0, 0.0, 1.0))
    worker = a_worker(costs=free, rows=[*rows("a", 20), *rows("b", 2)])
    (limited,) = limited_beside_small_jobs([worker], {}, {A: 0.5, B: 0.5}, [])
    assert limited.memory.max_rows == worker.memory.most_rows


def test_a_job_with_its_share_of_all_lines_needs_no_protection() -> None:
    shares = {A: 0.5, B: 0.5}
    worker = a_worker(costs=SLOWED, rows=[*rows("a", 10), *rows("b", 4)])
    assert rows_beside_small_jobs(worker, {}, shares)[B] == 4 + 7  # the other's four lines: 1.5 s alone, 2.4 s
    assert rows_beside_small_jobs(worker, {B: 100}, shares) == {A: 10 + 10}  # the ten lines: 2.25 s alone, 3.6 s
    assert rows_beside_small_jobs(worker, {B: 6}, shares) == {}
    assert rows_beside_small_jobs(a_worker(costs=SLOWED, rows=rows("a", 10)), {}, shares) == {}


def test_rows_that_left_for_a_small_job_do_not_come_back_because_it_is_no_longer_small_beside_the_others() -> None:
    shares = {A: 0.5, B: 0.5}
    few = a_worker(costs=SLOWED, rows=[*rows("a", 20), *rows("b", 2)])
    most = rows_beside_small_jobs(few, {}, shares)[B]
    left = a_worker(costs=SLOWED, rows=[*rows("a", 2), *rows("b", 2)])  # the small job has half of these
    (limited,) = limited_beside_small_jobs([left], {A: 18}, shares, [a_line("next", 90, tenant="a")])
    assert limited.memory.max_rows == most
