"""Which windows are called feasible, by those that ended jobs kept or missed."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.forecast.kept_windows import KEPT_SHARE, REMEMBERED, KeptWindows

WINDOW_S = 100.0


def after(*jobs: tuple[float, bool]) -> KeptWindows:
    """The record after jobs with these forecasts and windows of 100 s, kept or not."""
    windows = KeptWindows()
    for forecast_s, kept in jobs:
        windows.learn(forecast_s, WINDOW_S, kept)
    return windows


@pytest.mark.parametrize(
    ("jobs", "most_load"),
    [
        ([], 0.0),
        ([(50.0, True)] * 32, 0.0),  # too few are known
        ([(float(n), True) for n in range(1, 41)], 0.4),  # all were kept: up to the largest load seen
        ([(float(n), n <= 40) for n in range(1, 61)], 0.4),  # those above missed it
        ([(50.0, False)] * 50, 0.0),
        ([(1.0, False), *((float(n), True) for n in range(2, 34))], 0.0),  # 32 kept ones do not outweigh a missed one
        ([(1.0, False), *((float(n), True) for n in range(2, 68))], 0.67),  # 66 outweigh it and an unseen one
    ],
)
def test_the_largest_load_whose_windows_were_kept(jobs: list[tuple[float, bool]], most_load: float) -> None:
    windows = after(*jobs)
    assert windows.most_load() == pytest.approx(most_load)
    assert windows.shortest_s(10.0) == (pytest.approx(10.0 / most_load) if most_load else math.inf)


@given(st.lists(st.tuples(st.floats(1e-3, 1e6), st.booleans()), max_size=2 * REMEMBERED))
def test_of_the_windows_that_would_be_called_feasible_nearly_all_were_kept(
    jobs: list[tuple[float, bool]],
) -> None:
    windows = after(*jobs)
    feasible = [kept for forecast_s, kept in jobs[-REMEMBERED:] if forecast_s / WINDOW_S <= windows.most_load()]
    assert sum(feasible) >= KEPT_SHARE * len(feasible)


def test_old_windows_are_forgotten() -> None:
    windows = after(*[(50.0, False)] * REMEMBERED, *[(50.0, True)] * REMEMBERED)
    assert windows.most_load() == 0.5
