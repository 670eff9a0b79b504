""" """

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.batch_partition import groups_by_padding, least_serving_time, prefill_groups
from scheduling.costs import ServingCurves
from scheduling.request import Request
from tests.unit.scheduling.scheduling_builders import SLOPED, a_request, examples


def total_s(batches: list[tuple[Request, ...]], costs: ServingCurves) -> float:
    return sum(costs.serve_s(len(batch), max(r.prefill for r in batch), 128) for batch in batches)


def test_long_and_short_prompts_are_served_apart_as_in_figure_11() -> None:
    # 15 of 10 tokens and one of 1024: together 16·1024 tokens are padded and read 128 times, apart hardly any.
    requests = [a_request(str(n), length=10) for n in range(15)] + [a_request("long", length=1024)]
    batches = least_serving_time(requests, 128, SLOPED, lambda length: 100)
    assert sorted(len(batch) for batch in batches) == [1, 15]


def test_nothing_is_no_batch() -> None:
    assert least_serving_time([], 128, SLOPED, lambda length: 100) == []


@examples(25)
@given(st.lists(st.integers(1, 1000), min_size=1, max_size=9), st.integers(1, 4), st.integers(1000, 6000))
def test_the_total_serving_time_equals_brute_force(lengths: list[int], rows: int, tokens: int) -> None:
    requests = [a_request(str(number), length=length) for number, length in enumerate(lengths)]

    def largest(length: int) -> int:
        return min(rows, tokens // (length + 128))

    batches = least_serving_time(requests, 128, SLOPED, largest)
    assert sorted(request.id for batch in batches for request in batch) == sorted(request.id for request in requests)
    assert all(len(batch) <= max(1, largest(max(r.prefill for r in batch))) for batch in batches)

    ordered = sorted(requests, key=lambda request: request.prefill)
    best = float("inf")
    for count in range(len(ordered)):
        for cuts in combinations(range(1, len(ordered)), count):
            places = [0, *cuts, len(ordered)]
            parts = [tuple(ordered[a:b]) for a, b in pairwise(places)]
            if all(len(part) <= max(1, largest(part[-1].prefill)) for part in parts):
                best = min(best, total_s(parts, SLOPED))
    assert abs(total_s(batches, SLOPED) - best) < 1e-9


def test_prompts_of_similar_length_are_prefilled_together() -> None:
    requests = [a_request("a", length=100), a_request("b", length=300), a_request("c", at=1.0, length=300)]
    # a would pad 200 tokens of 0.2 ms, less than the 43.6 ms of another prefill
    assert [[r.id for r in group] for group in prefill_groups(requests, SLOPED)] == [["b", "c", "a"]]


def test_a_group_is_cut_where_the_rest_would_pad_for_longer_than_another_prefill_takes() -> None:
    requests = [a_request("long", length=320)] + [a_request(f"s{n}", at=n, length=100) for n in range(2)]
    # two rows of 220 pad tokens: 88 ms
    assert [[r.id for r in group] for group in prefill_groups(requests, SLOPED)] == [["long"], ["s0", "s1"]]


@pytest.mark.parametrize(
    ("lengths", "groups"),
    [
        ([], []),
        ([500], [[0]]),
        ([80, 20, 16], [[2, 1], [0]]),  # all in one would pad by 60 + 64
        ([16, 80], [[0, 1]]),  # 64 tokens of padding
        ([15, 80], [[0], [1]]),
        ([7, 7, 6], [[2, 0, 1]]),  # equal lengths stay in the order given
    ],
)
def test_a_group_has_no_more_padding_than_allowed(lengths: list[int], groups: list[list[int]]) -> None:
    assert groups_by_padding(lengths, max_padding=64) == groups
