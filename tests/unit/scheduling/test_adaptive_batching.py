""" """

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.adaptive_batching import (
    UNKNOWN_SIZE,
    AdaptiveBatcher,
    batch_reads,
    generating_waste,
    useful_reads,
    waiting_waste,
    wasted_memory_access,
)
from scheduling.kv_memory import KvMemory
from scheduling.request import Request
from tests.unit.scheduling.scheduling_builders import a_request, examples

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


# What happens to the queue: a request comes, the batch at a place of the queue is taken, or a request is discarded.
HAPPENINGS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 40), st.integers(1, 40)),
        st.tuples(st.sampled_from(["take", "discard"]), st.integers(0, 30), st.just(0)),
    ),
    max_size=60,
)


def brute_force_add(
    queue: list[list[Request]], request: Request, threshold: int, capacity: int | None, size: int | None
) -> None:
    """Algorithm 1 as it is printed, over every batch in the order of the queue."""
    best, least = None, float("inf")
    for batch in queue:
        joined = [*batch, request]
        memory = len(joined) * (max(r.prefill for r in joined) + max(r.remaining_upper for r in joined))
        if (capacity is not None and memory > capacity) or (size is not None and len(joined) > size):
            continue
        waste = wasted_memory_access([(r.prefill, r.remaining) for r in joined])
        if waste < least:
            best, least = batch, waste
    if best is not None and least < threshold:
        best.append(request)
    else:
        queue.append([request])


@pytest.mark.parametrize("size", [None, 3])
@examples(30)
@given(happenings=HAPPENINGS, threshold=st.integers(0, 3000), capacity=st.one_of(st.none(), st.integers(20, 600)))
def test_packing_equals_algorithm_1_over_every_batch(
    happenings: list[tuple[str, int, int]], threshold: int, capacity: int | None, size: int | None
) -> None:
    batcher, queue = AdaptiveBatcher(threshold), list[list[Request]]()
    if capacity is not None:
        batcher.set_limits(KvMemory(capacity, 1), size)
    for count, (what, number, generation) in enumerate(happenings):
        waiting = sorted(batcher.batches)
        if what == "add":
            request = a_request(str(count), predicted=generation, upper=generation + number % 5, length=number)
            batcher.add(request)
            brute_force_add(queue, request, threshold, capacity, size if capacity is not None else None)
        elif waiting:
            place = number % len(waiting)
            batch = batcher.batches[waiting[place]]
            expected = queue.pop(place)
            if what == "take":
                assert list(batcher.take(batch)) == expected
            else:
                batcher.remove_requests(batch, [expected[0].id])
                if expected[1:]:
                    queue.append(expected[1:])
        assert [list(batcher.batches[n].requests.values()) for n in sorted(batcher.batches)] == queue
    assert len(batcher) == sum(map(len, queue))


def test_a_sealed_batch_accepts_nobody() -> None:
    batcher = AdaptiveBatcher(1_000)
    sealed = batcher.open_batch([a_request("a")], sealed=True)
    assert batcher.add(a_request("b")) is not sealed


def test_a_lower_bound_packs_what_is_beyond_it_again() -> None:
    batcher = AdaptiveBatcher(50_000)
    for name in "abcd":
        batcher.add(a_request(name))
    assert [len(batch.requests) for batch in batcher.batches.values()] == [4]
    batcher.set_limits(KvMemory(40, 1), None)  # two rows of 10 + 10
    assert [len(batch.requests) for batch in batcher.batches.values()] == [2, 2]
    batcher.set_limits(KvMemory(10, 1), None)  # not even one: each waits alone
    assert [len(batch.requests) for batch in batcher.batches.values()] == [1, 1, 1, 1]


def test_until_a_worker_is_known_a_batch_is_small_enough_to_be_left_by_one_request_after_another() -> None:
    batcher = AdaptiveBatcher(50_000)
    for number in range(2 * UNKNOWN_SIZE + 1):
        batcher.add(a_request(str(number)))
    assert [len(batch.requests) for batch in batcher.batches.values()] == [UNKNOWN_SIZE, UNKNOWN_SIZE, 1]


def test_a_higher_bound_opens_full_batches_again() -> None:
    batcher = AdaptiveBatcher(50_000)
    batcher.set_limits(KvMemory(20, 1), None)
    first = batcher.add(a_request("a"))
    batcher.set_limits(KvMemory(40, 1), None)
    assert batcher.add(a_request("b")) is first
