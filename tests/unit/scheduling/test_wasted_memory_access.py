from hypothesis import given
from hypothesis import strategies as st

from scheduling.wasted_memory_access import (
    batch_reads,
    generating_waste,
    useful_reads,
    waiting_waste,
    wasted_memory_access,
)
from tests.unit.scheduling.scheduling_builders import examples

LENGTHS = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=8)


def test_the_waste_of_a_batch_like_that_of_figure_9() -> None:
    # p1: L = 6, G = 4;  p2: L = 4, G = 3;  p3: L = 3, G = 6;  so L(B) = 6 and G(B) = 6.
    # p1: 4·(6 - 6) = 0    and waits at g = 4, 5, 6:     10 + 11 + 12 = 33      together 33
    # p2: 3·(6 - 4) = 6    and waits at g = 3, 4, 5, 6:  9 + 10 + 11 + 12 = 42  together 48
    # p3: 6·(6 - 3) = 18   and waits at g = 6:           12                     together 30
    assert (generating_waste(6, 4, 6), waiting_waste(4, 6, 6)) == (0, 33)
    assert (generating_waste(4, 3, 6), waiting_waste(3, 6, 6)) == (6, 42)
    assert (generating_waste(3, 6, 6), waiting_waste(6, 6, 6)) == (18, 12)
    assert wasted_memory_access([(6, 4), (4, 3), (3, 6)]) == 48


def test_a_request_alone_wastes_its_length_and_generation_length() -> None:
    # Eq. (3) counts g = G(p) even if the request is the longest: G + L.
    assert wasted_memory_access([(10, 7)]) == 17


@examples(40)
@given(LENGTHS)
def test_the_closed_form_equals_equations_2_to_4(lengths: list[tuple[int, int]]) -> None:
    batch_length = max(length for length, _ in lengths)
    batch_generation = max(generation for _, generation in lengths)
    literal = max(
        generation * (batch_length - length) + sum(g + batch_length for g in range(generation, batch_generation + 1))
        for length, generation in lengths
    )
    assert wasted_memory_access(lengths) == literal
    for length, generation in lengths:
        assert batch_reads(batch_length, batch_generation) - useful_reads(length, generation) == (
            generating_waste(length, generation, batch_length)
            + waiting_waste(generation, batch_length, batch_generation)
        )
