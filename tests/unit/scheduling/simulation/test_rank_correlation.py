import numpy as np
import pytest

from scheduling.simulation.rank_correlation import EVERY, RECENT, RankCorrelation, kendall_tau


@pytest.mark.parametrize(
    ("one", "other", "tau"),
    [
        ([1, 2, 3], [10, 20, 30], 1.0),
        ([1, 2, 3], [30, 20, 10], -1.0),
        ([1, 2, 3], [10, 30, 20], 1 / 3),  # two pairs agree, one does not
        ([1, 1, 2], [1, 2, 3], 2 / 6**0.5),  # one pair is tied on one side: 2 / √(2 · 3)
        ([5, 5, 5], [1, 2, 3], 0.0),
    ],
)
def test_tau_counts_pairs_in_the_same_order(one: list[int], other: list[int], tau: float) -> None:
    assert kendall_tau(np.array(one), np.array(other)) == pytest.approx(tau)


def test_recent_answers_are_judged_now_and_then() -> None:
    judge = RankCorrelation()
    right = [judge.tau(number, number) for number in range(RECENT)]
    assert [tau for tau in right if tau is not None] == [1.0] * (RECENT // EVERY)
    wrong = [judge.tau(-number, number) for number in range(RECENT, 2 * RECENT)]
    assert wrong[-1] == -1.0  # what was right is forgotten
