import pytest

from scheduling.prefill_groups import groups_by_padding, prefill_groups
from tests.unit.scheduling.scheduling_builders import SLOPED, a_request


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
