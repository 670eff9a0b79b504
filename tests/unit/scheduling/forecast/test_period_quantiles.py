"""Period life tables: quantiles of durations of which some go on."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.forecast.period_quantiles import Case, period_quantiles
from tests.unit.scheduling.scheduling_builders import examples


def ended(*ages: float) -> list[Case]:
    return [Case(-math.inf, age) for age in ages]


def test_where_all_have_ended_a_quantile_is_the_age_of_its_rank() -> None:
    # ranks 0.25, 0.5 and 0.75 of (3 + 1): the first, the second and the third
    assert period_quantiles(ended(3.0, 1.0, 2.0), (0.25, 0.5, 0.75), 1.0) == pytest.approx([1.0, 2.0, 3.0])


def test_a_case_that_goes_on_is_one_that_ends_later() -> None:
    cases = [*ended(1.0, 2.0, 3.0), Case(-math.inf, 1.5, False)]
    # after 1.0 three of four are left; the one that goes on from 1.5 is shared by those that end after it: 3/8 each
    (median,) = period_quantiles(cases, (0.5,), 1.0)
    assert median == pytest.approx(2.0)


def test_a_share_that_goes_on_beyond_all_ends_as_the_reciprocal_of_time() -> None:
    cases = [*ended(0.0, 0.0), *[Case(-math.inf, 5.0, False)] * 2]
    between, high, higher = period_quantiles(cases, (0.6, 0.75, 0.95), 1.0)
    assert between == pytest.approx(5.0 + math.log(0.5 / 0.4))
    assert high == pytest.approx(5.0 + math.log(2))  # half of those that go on: at twice the time
    assert higher == high  # nothing is known further out


@examples(20)
@given(st.integers(0, 1000), st.floats(1.0, 4.0))  # a hundred ends a period: of fewer the median strays by a third
def test_a_period_shorter_than_the_cases_has_their_true_median(seed: int, period: float) -> None:
    rng = np.random.default_rng(seed)
    cases = []
    for began, lasts in zip(np.arange(-40, 0, 0.01), rng.gamma(4.0, 1.5, 4000), strict=True):  # 6 in the mean
        if began + lasts > -period:
            cases.append(Case(max(0.0, -period - began), min(lasts, -began), bool(began + lasts <= 0)))
    (median,) = period_quantiles(cases, (0.5,), 1.0)
    assert median == pytest.approx(5.5, rel=0.35)  # the median of this gamma distribution
