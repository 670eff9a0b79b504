import pytest

from scheduling.forecast.forecast_inputs import RecentArrivals
from tests.unit.scheduling.scheduling_builders import a_request

NOW = 1.7e9  # a planner's clock counts from 1970


def test_arrivals_are_expected_at_the_rate_of_the_last_seconds_each_counted_once() -> None:
    recent = RecentArrivals()
    assert recent.rate(NOW) == 0.0
    assert not list(recent.expected(NOW))
    for n in range(30):
        request = a_request(f"r{n}", at=NOW + n, predicted=10 + n)
        recent.add(request, NOW + n)
        recent.add(request, NOW + n)
    assert recent.rate(NOW + 30) == pytest.approx(1.0, rel=0.1)
    coming = recent.expected(NOW + 30)
    first, second = next(coming), next(coming)
    assert second.arrived_at - first.arrived_at == pytest.approx(1.0, rel=0.1)
    assert first.predicted != second.predicted
    assert recent.rate(NOW + 60) == 0.0


def test_a_new_planner_takes_what_waited_before_it_for_no_burst_of_arrivals() -> None:
    recent = RecentArrivals()
    for n in range(6000):
        recent.add(a_request(f"r{n}", at=NOW - 6000 + n), NOW)
    assert recent.rate(NOW) == pytest.approx(15, abs=1)  # those of 15 s, taken to have come within the first one
