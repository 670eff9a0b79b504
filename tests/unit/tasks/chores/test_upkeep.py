"""A chore is repeated while there is a full chunk of it and time is left."""

from collections.abc import Callable

from tasks.chores.upkeep import repeat


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
