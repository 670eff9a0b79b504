from itertools import combinations
from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.rank_correlation import (
    ANSWERS_BETWEEN_UPDATES,
    RECENT_ANSWERS,
    RankedAnswers,
    kendall_tau,
    prediction_weight,
    rank_correlation,
)
from tests.unit.scheduling.scheduling_builders import examples


@pytest.mark.parametrize(
    ("first", "second", "tau"),
    [
        ([1, 2, 3], [10, 20, 30], 1.0),
        ([1, 2, 3], [30, 20, 10], -1.0),
        ([1, 2, 3], [10, 30, 20], 1 / 3),  # two pairs agree, one does not
        ([1, 2, 3, 4], [1, 2, 4, 3], 4 / 6),  # five pairs agree, one does not
        ([1, 1, 2], [1, 2, 3], 2 / 6**0.5),  # one pair is tied on one side: 2 / √(2 · 3)
        ([1, 1, 2], [3, 3, 5], 1.0),  # a pair that is tied on both sides does not count
        ([5, 5, 5], [1, 2, 3], 0.0),
        ([7], [7], 0.0),
        ([], [], 0.0),
    ],
)
def test_tau_counts_pairs_in_the_same_order(first: list[int], second: list[int], tau: float) -> None:
    assert kendall_tau(np.array(first), np.array(second)) == pytest.approx(tau)


@examples(50)
@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from([0.5, 1.0, 2.5, 7.0])), max_size=25))
def test_tau_equals_pairs_looked_at_one_by_one(drawn: list[tuple[int, float]]) -> None:
    signs = [(np.sign(a - c), np.sign(b - d)) for (a, b), (c, d) in combinations(drawn, 2)]
    untied = sqrt(sum(one != 0 for one, _ in signs) * sum(other != 0 for _, other in signs))
    expected = sum(one * other for one, other in signs) / untied if untied else 0.0
    first, second = np.array(drawn, np.float64).reshape(-1, 2).T
    assert kendall_tau(first, second) == expected


def test_the_ranking_of_the_ranked_answers_is_measured_now_and_then() -> None:
    recent = RankedAnswers()
    right = [recent.update(9, number, number) for number in range(1, RECENT_ANSWERS + 1)]
    assert [each.tau for each in right if each] == [1.0] * (RECENT_ANSWERS // ANSWERS_BETWEEN_UPDATES)
    wrong = [recent.update(9, 10_000 - number, number) for number in range(RECENT_ANSWERS, 2 * RECENT_ANSWERS)]
    assert wrong[-1]
    assert wrong[-1].tau == -1.0  # the right predictions of before no longer count


# Prompts that are unrelated to answers in ascending order; by chance their tau with the answers' work is -0.03.
SHUFFLED = [*np.random.default_rng(1).permutation(30) + 1.0]


@pytest.mark.parametrize(
    ("why", "prompts", "predicted", "generated", "by_prompts"),
    [
        ("long prompts have long answers", [10, 20, 30, 40], [9, 9, 9, 9], [10, 20, 30, 40], True),
        ("short prompts have long answers", [40, 30, 20, 10], [9, 9, 9, 9], [10, 200, 300, 400], False),
        ("predictions are right, whatever prompts say", [900, 30, 20, 10], [10, 20, 30, 40], [10, 20, 30, 40], True),
        (
            "prompts mislead more than predictions",
            [90, 60, 5, 4],
            [10, 12, 30, 40],
            [10, 200, 300, 400],
            False,
        ),
        ("prompts mislead no more than by chance", SHUFFLED, [9] * 30, [*range(10, 310, 10)], True),
        ("prompts are equal", [10, 10, 10, 10], [9, 8, 7, 6], [1, 2, 3, 4], True),
        ("there is one answer", [10], [9], [8], True),
    ],
)
def test_prompts_count_unless_estimates_rank_answers_better_without_them(
    why: str, prompts: list[float], predicted: list[float], generated: list[float], by_prompts: bool
) -> None:
    assert (
        rank_correlation(*(np.array(each, np.float64) for each in (prompts, predicted, generated))).by_prompts
        == by_prompts
    )


@pytest.mark.parametrize(("tau", "weight"), [(None, 1.0), (1.0, 1.0), (0.5, sqrt(0.5)), (0.05, 0.0), (-1.0, 0.0)])
def test_predictions_weigh_as_much_as_their_rank_deserves(tau: float | None, weight: float) -> None:
    assert prediction_weight(tau) == pytest.approx(weight)
