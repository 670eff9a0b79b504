"""Background rows leave for others' joiners: the newest, and as few as the part and the memory demand."""

from hypothesis import given
from hypothesis import strategies as st

from scheduling.policy import Assignment, RunningRow, Worker
from scheduling.request import Request
from scheduling.sharing.background.parking import SLACK, park, parked_for, without_background
from tests.unit.scheduling.scheduling_builders import a_line, a_paged_worker, a_request, a_row, a_worker, examples


def lines(count: int, before: int = 0) -> list[RunningRow]:
    """Rows of a hundred tokens at their ends that joined one after the other."""
    return [RunningRow(a_line(f"line{n}", 90, generated=before), before + 1, float(n)) for n in range(count)]


def joining(count: int = 1, most_rows: int | None = None) -> list[Assignment]:
    """An assignment of requests of a hundred tokens."""
    requests = tuple(a_request(f"joiner{n}", predicted=90) for n in range(count))
    return [Assignment("w", requests, joins=True, most_rows=most_rows)]


def names(rows: list[RunningRow]) -> list[str]:
    return [row.request.id for row in rows]


def test_all_rows_leave_a_worker_that_is_the_others() -> None:
    worker = a_worker(rows=[*lines(3), a_row("other")])
    assert names(parked_for(worker, joining(), 0, ())) == ["line2", "line1", "line0"]
    assert [row.request.id for row in without_background(worker).rows] == ["other"]


def test_none_leaves_if_nobody_joins() -> None:
    assert parked_for(a_worker(rows=lines(3)), [], 0, ()) == []
    assert park([a_worker(rows=lines(3))], [], {}, ()) == []


def test_the_newest_leave_until_the_rest_fits_the_part_which_may_be_exceeded_a_little() -> None:
    worker = a_worker(rows=lines(8))  # with the joiner 900 tokens
    assert parked_for(worker, joining(), 721, ()) == []  # 1.25 times 721 are 901
    assert names(parked_for(worker, joining(), 719, ())) == ["line7", "line6"]


def test_rows_leave_for_memory_whatever_the_part() -> None:
    assert names(parked_for(a_worker(tokens=810, rows=lines(8)), joining(), 5_000, ())) == ["line7"]


def test_rows_leave_for_slots() -> None:
    assert names(parked_for(a_worker(rows=lines(4)), joining(2, most_rows=4), 10_000, ())) == ["line3", "line2"]
    assert names(parked_for(a_paged_worker(rows=lines(4), max_rows=4), joining(), 10_000, ())) == ["line3"]


def test_rows_that_never_left_go_first_and_those_that_leave_already_are_not_told_again() -> None:
    rows = [*lines(2, before=1), *lines(4)[2:]]
    worker = a_worker(tokens=400, rows=rows)
    assert names(parked_for(worker, joining(), 5_000, ())) == ["line3"]
    assert names(parked_for(worker, joining(2), 5_000, ())) == ["line3", "line2"]
    assert names(parked_for(worker, joining(2), 5_000, ("line3",))) == ["line2"]


def test_the_first_assignment_of_a_worker_names_the_rows_and_keeps_its_own() -> None:
    first, second = Assignment("w", (), joins=True, preempts=("old",)), *joining()
    named = park([a_worker("v"), a_worker(rows=lines(1))], [first, second], {}, ())
    assert named == [Assignment("w", (), joins=True, preempts=("old", "line0")), second]


def peak(worker: Worker, rows: list[Request | RunningRow]) -> float:
    """The most tokens that rows hold at once, iteration by iteration, just before each one's end."""
    held = [
        (row.request.length + row.generated, max(1, row.request.predicted - row.generated))
        if isinstance(row, RunningRow)
        else (row.prefill, max(1, row.predicted - row.generated))
        for row in rows
    ]
    most = 0.0
    for iteration in {left for _, left in held}:
        running = [cached + iteration for cached, left in held if left >= iteration]
        most = max(most, float(sum(running) if worker.memory.paged else len(running) * max(running)))
    return most


@examples(80)
@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 30), st.integers(1, 30)), max_size=8),
    st.lists(st.integers(1, 30), min_size=1, max_size=3),
    st.integers(0, 400),
    st.integers(60, 400),
    st.booleans(),
)
def test_no_more_rows_leave_than_must(
    drawn: list[tuple[bool, int, int]], joined: list[int], part: int, tokens: int, paged: bool
) -> None:
    rows = [
        RunningRow(
            a_line(f"r{n}", predicted, length=length) if back else a_request(f"r{n}", 0.0, length, predicted), 1, n
        )
        for n, (back, length, predicted) in enumerate(drawn)
    ]
    worker = a_paged_worker(tokens, rows) if paged else a_worker(tokens=tokens, rows=rows)
    requests = [a_request(f"j{n}", 0.0, 5, predicted) for n, predicted in enumerate(joined)]
    parked = parked_for(worker, [Assignment("w", tuple(requests), joins=True)], part, ())
    newest = sorted((row for row in rows if row.request.background), key=lambda row: -row.started_at)
    assert parked == newest[: len(parked)]
    stays = [row for row in rows if row not in parked]
    if not parked:
        assert not newest or peak(worker, [*rows, *requests]) <= min(tokens, (1 + SLACK) * part)
    else:
        assert len(parked) == len(newest) or peak(worker, [*stays, *requests]) <= min(tokens, part)
        assert peak(worker, [*stays, parked[-1], *requests]) > min(tokens, part)
