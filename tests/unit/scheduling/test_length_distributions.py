""""""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.length_distributions import (
    UPPER_Z,
    conditional_level,
    conditional_quantile,
    conditional_totals,
    drawn_length,
    expected_length,
)
from scheduling.request import RowLength
from tests.unit.scheduling.scheduling_builders import a_request


def totals(predicted: float, upper: float, generated: float) -> tuple[float, float]:
    median, quantile = conditional_totals(np.array([predicted]), np.array([upper]), np.array([generated]))
    return float(median[0]), float(quantile[0])


@pytest.mark.parametrize(
    ("predicted", "upper", "generated", "median", "quantile"),
    [
        (100, 900, 0, 100, 900),  # nothing is known beyond the prediction
        (100, 900, 100, 300, 1900),  # β = 1: 100·(1 + 2), 100·(9 + 10)
        (100, 900, 1000, 2100, 10900),  # far beyond it: twice and about ten times what there is
        (100, 300, 100, 100 * math.sqrt(3), 100 * math.sqrt(19)),  # β = 2
        (50, 50, 20, 50, 50),  # a certain prediction is believed
        (50, 50, 50, 51, 51),  # until it is outlived
        (50, 40, 0, 50, 40),  # an upper quantile below the median says nothing about the spread
    ],
)
def test_totals_of_rows_that_have_come_so_far(
    predicted: float, upper: float, generated: float, median: float, quantile: float
) -> None:
    assert totals(predicted, upper, generated) == pytest.approx((median, quantile))


@given(st.integers(1, 2000), st.floats(1.1, 20.0), st.integers(0, 20_000))
def test_half_of_the_rows_that_have_come_so_far_end_by_the_median_and_nine_in_ten_by_the_quantile(
    predicted: int, spread: float, generated: int
) -> None:
    power = math.log(9) / math.log(spread)

    def survive(tokens: float) -> float:
        return float(np.exp(-np.logaddexp(0.0, power * math.log(max(tokens, 1e-9) / predicted))))

    median, quantile = totals(predicted, predicted * spread, generated)
    if median > generated + 1:
        assert survive(median) / survive(generated) == pytest.approx(0.5, rel=1e-6)
    if quantile > generated + 1:
        assert survive(quantile) / survive(generated) == pytest.approx(0.1, rel=1e-6)


@given(st.integers(1, 2000), st.floats(1.1, 20.0), st.integers(1, 5000), st.floats(0.01, 0.99))
def test_a_level_and_the_length_at_it_are_inverse_and_the_median_is_at_a_half(
    predicted: int, spread: float, generated: int, level: float
) -> None:
    row = np.array([float(predicted)]), np.array([predicted * spread]), np.array([float(generated)])
    length = conditional_quantile(*row, level / (1 - level))
    assert length[0] >= generated
    assert conditional_level(*row, length)[0] == pytest.approx(level, rel=1e-4, abs=1e-6)
    assert conditional_level(*row, row[2])[0] == 0
    median, _ = totals(predicted, predicted * spread, generated)
    if median > generated + 1:
        assert conditional_level(*row, np.array([median]))[0] == pytest.approx(0.5, abs=1e-6)


@given(st.integers(1, 500), st.integers(1, 400), st.floats(1.0, 5.0), st.integers(0, 800))
def test_a_row_predicted_again_is_a_new_row_with_what_it_had_then_behind_it(
    at: int, left: int, spread: float, since: int
) -> None:
    upper = round(left * spread)
    predicted, quantile, generated = (np.array([float(at + tokens)]) for tokens in (left, upper, since))
    again = conditional_totals(predicted, quantile, generated, float(at))
    assert [total[0] - at for total in again] == pytest.approx(totals(left, upper, since))
    limit = 10_000
    new = a_request("new", predicted=left, upper=upper, limit=limit)
    row = RowLength(at, at + left, at + upper).of(a_request("row", predicted=9, limit=at + limit))
    assert drawn_length(row, 0.3, at + since) == drawn_length(new, 0.3, since)


ONE_SPREAD = math.exp(UPPER_Z)  # the ratio of upper quantile and median for σ = 1


@pytest.mark.parametrize(
    ("median", "upper", "limit", "mean"),
    [
        (100, 100, 500, 100),  # a certain prediction
        (100, 90, 500, 100),  # an upper quantile below the median says nothing about the spread
        (100, 100 * ONE_SPREAD, 10**9, 100 * math.exp(0.5)),  # no answer reaches the limit
        (100, 100 * ONE_SPREAD, 100, 76.1578),  # z = 0: 100 · (1.64872 · 0.158655 + 0.5)
        (20, 1024, 1024, 184.5),  # σ = 3.0709, z = 1.2816: 2,234 · 0.03677 + 1024 · 0.1
    ],
)
def test_the_mean_of_a_predicted_length(median: float, upper: float, limit: int, mean: float) -> None:
    assert expected_length(median, upper, limit) == pytest.approx(mean, rel=1e-3)
