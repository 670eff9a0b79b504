"""A chore is repeated while there is a full chunk of it and time is left."""

from collections.abc import Callable

import psycopg
import pytest
from sqlalchemy.exc import OperationalError
from structlog.testing import capture_logs

from tasks.chores.upkeep import do_each, repeat


def chunks_of(*sizes: int) -> tuple[Callable[[], int], list[int]]:
    left = list(sizes)
    return lambda: left.pop(0), left


def test_a_chore_ends_with_the_first_chunk_that_is_not_full() -> None:
    chunk, left = chunks_of(5, 5, 2, 5)
    assert repeat(chunk, full=5, for_s=1000.0) == 12
    assert left == [5]


def test_a_chore_that_is_not_done_in_its_time_is_left_for_the_next_tick() -> None:
    chunk, left = chunks_of(5, 5, 5)
    assert repeat(chunk, full=5, for_s=0.0) == 5
    assert left == [5, 5]


def test_a_part_that_fails_holds_up_no_other_part_and_is_reported() -> None:
    done = list[str]()

    def fails(why: str) -> Callable[[], None]:
        def part() -> None:
            raise ValueError(why)

        return part

    with pytest.raises(ValueError, match="only one"):
        do_each(lambda: done.append("first"), fails("only one"), lambda: done.append("last"))
    assert done == ["first", "last"]
    with capture_logs() as logs, pytest.raises(ValueError, match="first"):
        do_each(fails("first"), fails("second"))
    assert [line["error"] for line in logs] == ["second"]


@pytest.mark.parametrize(
    ("why", "done"), [(psycopg.OperationalError("refused"), []), (psycopg.errors.DiskFull("no space"), ["tried"])]
)
def test_no_further_part_is_tried_if_no_database_is_reached(why: psycopg.Error, done: list[str]) -> None:
    tried = list[str]()

    def fails() -> None:
        raise OperationalError("select 1", {}, why)

    with pytest.raises(OperationalError):
        do_each(fails, lambda: tried.append("tried"))
    assert tried == done
