import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.forecast.expectations import (
    FEWEST,
    KEPT,
    KEPT_S,
    LEAST_LOG,
    LONGEST_S,
    OTHER_SPREAD,
    UNKNOWN,
    Band,
    Expectation,
    IntervalCalibration,
    OpenForecast,
    ResponseLine,
    spread_of,
)
from tests.unit.scheduling.scheduling_builders import examples


@examples(15)
@given(st.integers(0, 1000), st.floats(0.2, 5.0), st.floats(0.1, 1.0))
def test_intervals_cover_nine_of_ten_answers_and_the_expectation_is_without_bias(
    seed: int, bias: float, noise: float
) -> None:
    rng = np.random.default_rng(seed)
    calibration = IntervalCalibration()
    inside, below = [], []
    for number in range(1600):
        expected_s, spread = float(rng.uniform(1, 100)), float(rng.uniform(0.2, 1.0))
        real_s = expected_s * bias * float(np.exp(noise * spread * rng.standard_normal()))
        if number >= KEPT:
            told = calibration.around("waiting", expected_s, spread)
            inside.append(told.low_s <= real_s <= told.high_s)
            below.append(real_s <= told.seconds)
        calibration.learn("waiting", expected_s, spread, real_s, number / 10)
    assert 0.86 <= np.mean(inside) <= 0.94
    assert 0.44 <= np.mean(below) <= 0.56


@pytest.mark.parametrize("answers_a_second", [2, 100])
def test_intervals_cover_answers_whose_errors_are_alike_for_seconds_however_many_come_a_second(
    answers_a_second: int,
) -> None:
    rng = np.random.default_rng(1)
    calibration, burst = IntervalCalibration(), 0.0
    told = calibration.around("waiting", 1.0, 1.0)
    kept = math.exp(-1 / (3 * answers_a_second))  # bursts last some 3 s
    inside = []
    for number in range(300 * answers_a_second):
        burst = kept * burst + math.sqrt(1 - kept**2) * rng.standard_normal()
        real_s = math.exp(0.5 * burst + 0.1 * rng.standard_normal())
        if number % (1 + answers_a_second // 10) == 0:  # as often as snapshots are read
            told = calibration.around("waiting", 1.0, 1.0)
        inside.append(told.low_s <= real_s <= told.high_s)
        calibration.learn("waiting", 1.0, 1.0, real_s, number / answers_a_second)
    assert 0.85 <= np.mean(inside[len(inside) // 4 :]) <= 0.95


def coverage_in_overload(seed: int, with_unanswered: bool) -> float:
    """Ten requests come a second, of which a quarter is overtaken by all others until arrivals end after two minutes.

    No forecast knows it.
    """
    rng = np.random.default_rng(seed)
    calibration, inside, open_at = IntervalCalibration(), list[bool](), set[float]()
    told = calibration.around("waiting", 1.0, 1.0)
    coming = list[tuple[float, float, Expectation]]()
    for number in range(1200):
        now = number / 10
        for ended in [one for one in coming if one[0] <= now]:
            coming.remove(ended)
            open_at.remove(ended[1])
            calibration.learn("waiting", 1.0, 1.0, ended[0] - ended[1], now)
        if with_unanswered and number % 20 == 0:
            calibration.observe("waiting", (OpenForecast(1.0, 1.0, now - at) for at in open_at), now)
        if number % 20 == 0:
            told = calibration.around("waiting", 1.0, 1.0)
        end = 130.0 + rng.uniform(0, 5) if rng.random() < 0.25 and now > 20 else now + float(rng.lognormal(0.0, 0.3))
        open_at.add(now)
        coming.append((end, now, told))
        if now > 60:
            inside.append(told.low_s <= end - now <= told.high_s)
    return float(np.mean(inside))


@pytest.mark.parametrize("seed", range(2))
def test_in_overload_intervals_cover_also_those_that_wait_behind_all_others(seed: int) -> None:
    assert coverage_in_overload(seed, with_unanswered=False) < 0.75
    assert coverage_in_overload(seed, with_unanswered=True) > 0.87


@pytest.mark.parametrize("sign", [1, -1])
def test_levels_that_follow_the_misses_widen_intervals_while_errors_drift(sign: int) -> None:
    rng = np.random.default_rng(1)
    plain, adaptive = IntervalCalibration(), IntervalCalibration()
    inside = list[tuple[bool, bool]]()
    for number in range(1200):
        real_s = math.exp(sign * 0.3 * number / KEPT + 0.2 * rng.standard_normal())
        if number % 10 == 0:
            told = [each.around("waiting", 1.0, 1.0) for each in (plain, adaptive)]
        inside.append((told[0].low_s <= real_s <= told[0].high_s, told[1].low_s <= real_s <= told[1].high_s))
        adaptive.judge("waiting", real_s < told[1].low_s, inside[-1][1], real_s > told[1].high_s)
        for each in (plain, adaptive):
            each.learn("waiting", 1.0, 1.0, real_s, number / 3)
    covers = np.mean(inside[600:], axis=0)
    assert covers[1] > covers[0] + 0.03


def test_levels_stay_while_no_answer_comes() -> None:
    calibration = IntervalCalibration()
    for second in range(KEPT):
        calibration.learn("waiting", 1.0, 0.5, 1.0 + second / KEPT, float(second))
    before = calibration.around("waiting", 1.0, 0.5)
    calibration.judge("waiting", 0, 0, 0)
    assert calibration.around("waiting", 1.0, 0.5) == before
    calibration.judge("waiting", 0, 0, 5)
    assert calibration.around("waiting", 1.0, 0.5).high_s > before.high_s


def test_errors_of_more_than_a_minute_ago_are_forgotten_once_there_are_enough_newer_ones() -> None:
    calibration = IntervalCalibration()
    for number in range(KEPT + 1):
        calibration.learn("waiting", 1.0, 1.0, 9.0, number / 10)
    for number in range(KEPT):
        calibration.learn("waiting", 1.0, 1.0, 3.0, KEPT_S + 30 + number / 10)
    assert calibration.around("waiting", 1.0, 1.0).high_s < 3.5


def test_until_some_forecasts_have_come_true_errors_are_taken_to_be_normal() -> None:
    calibration = IntervalCalibration()
    for _ in range(FEWEST - 1):
        calibration.learn("running", 1.0, 1.0, 50.0, 0.0)
    assert calibration.band("running", 1.0) == Band(*UNKNOWN, known=False)
    calibration.learn("running", 1.0, 1.0, 50.0, 0.0)
    assert calibration.band("running", 1.0).middle == pytest.approx(np.log(50))
    assert calibration.band("waiting", 1.0) == Band(*UNKNOWN, known=False)
    assert calibration.band("waiting", 1.0) == Band(*UNKNOWN, known=False)  # the same, read again


def test_an_expectation_can_be_moved_and_scaled_with_its_interval() -> None:
    assert Expectation(2.0, 1.0, 4.0).later(0.5) == Expectation(2.5, 1.5, 4.5)
    assert Expectation(2.0, 1.0, 4.0).scaled(3.0) == Expectation(6.0, 3.0, 12.0)


@pytest.mark.parametrize(("known", "told_s"), [(True, (5.0, 20.0)), (False, (None, None))])
def test_clients_are_told_an_interval_once_it_follows_from_errors(
    known: bool, told_s: tuple[float | None, ...]
) -> None:
    assert Expectation(10.0, 5.0, 20.0, known).told_s == told_s


def test_forecasts_of_another_horizon_correct_none_that_has_enough_of_its_own() -> None:
    calibration = IntervalCalibration()
    for _ in range(FEWEST):
        calibration.learn("waiting", 0.1, 1.0, 0.5, 0.0)  # what a decision takes
        calibration.learn("waiting", 60.0, 1.0, 66.0, 0.0)
    assert calibration.around("waiting", 0.1, 1.0).seconds == pytest.approx(0.5)
    assert calibration.around("waiting", 60.0, 1.0).seconds == pytest.approx(66.0)
    assert calibration.around("waiting", 5.0, 1.0).seconds == pytest.approx(5.5)  # 60 s are nearer to it than 0.1 s


@given(
    st.lists(st.tuples(st.floats(0, 1e300), st.floats(OTHER_SPREAD, 50), st.floats(0, 1e300)), max_size=2 * FEWEST),
    st.floats(0, 1e300),
    st.floats(OTHER_SPREAD, 50),
)
def test_no_error_however_large_leads_out_of_the_calendar(
    errors: list[tuple[float, float, float]], expected_s: float, spread: float
) -> None:
    calibration = IntervalCalibration()
    for one in [*errors, *FEWEST * [(1e-9, OTHER_SPREAD, 1e12)]]:
        calibration.learn("waiting", *one, 0.0)
    told = calibration.around("waiting", expected_s, spread)
    assert 0 < told.low_s <= told.seconds <= told.high_s <= LONGEST_S


def test_the_own_length_counts_as_far_as_serving_it_is_part_of_the_time_left() -> None:
    assert spread_of(1.0, 0.0) == OTHER_SPREAD
    assert spread_of(1.0, 1.0) > spread_of(1.0, 0.5) > spread_of(0.1, 0.5)


def test_a_line_never_tells_less_than_nothing() -> None:
    assert ResponseLine(-1.0, 0.1).at(5) == 0.0


def test_an_interval_may_be_cut_but_not_before_its_middle() -> None:
    told = Expectation(10.0, 5.0, 90.0)
    assert [told.at_most(most).high_s for most in (100.0, 40.0, 3.0)] == [90.0, 40.0, 10.0]


def test_a_forecast_is_cut_to_its_bound_and_its_interval_widened_to_hold_both_bounds() -> None:
    told = Expectation(10.0, 4.0, 90.0)
    assert told.between(2.0, 8.0) == Expectation(8.0, 2.0, 90.0)
    assert told.between(5.0, 100.0) == Expectation(10.0, 4.0, 100.0)


def test_errors_that_were_all_alike_still_leave_an_interval() -> None:
    calibration = IntervalCalibration()
    for _ in range(KEPT):
        calibration.learn("waiting", 10.0, 0.6, 11.0, 0.0)
    told = calibration.around("waiting", 10.0, 0.6)
    assert told.low_s == pytest.approx(11.0 * math.exp(-LEAST_LOG))
    assert told.high_s == pytest.approx(11.0 * math.exp(LEAST_LOG))


def test_the_promised_share_of_answers_comes_within_its_seconds_also_while_late_ones_are_missing() -> None:
    rng, calibration = np.random.default_rng(2), IntervalCalibration()
    assert calibration.within_s("waiting", 10.0, 0.6, 0.9) is None
    kept: dict[float, list[bool]] = {share: [] for share in (0.5, 0.9, 0.95)}
    for number in range(3000):
        expected_s = float(rng.uniform(1, 100))
        real_s = expected_s * float(np.exp(0.3 * rng.standard_normal()))
        if number >= KEPT:
            for share, each in kept.items():
                promised_s = calibration.within_s("waiting", expected_s, 0.6, share)
                assert promised_s is not None
                each.append(real_s <= promised_s)
        calibration.learn("waiting", expected_s, 0.6, real_s, number / 10)
    for share, each in kept.items():
        assert np.mean(each) == pytest.approx(share, abs=0.03)


def test_nothing_is_promised_where_answers_come_beyond_any_ratio() -> None:
    calibration = IntervalCalibration()
    for number in range(KEPT):
        calibration.learn("waiting", 1.0, 0.6, 1000.0, number / 10)
    assert calibration.within_s("waiting", 1.0, 0.6, 0.5) is None


def test_at_the_share_of_an_interval_a_promise_is_its_upper_end_and_is_later_once_answers_are_late() -> None:
    calibration = IntervalCalibration()
    for number in range(KEPT):
        calibration.learn("waiting", 10.0, 0.6, 8.0 + 4.0 * number / KEPT, number / 10)
    told = calibration.around("waiting", 10.0, 0.6)
    promised = [calibration.within_s("waiting", 10.0, 0.6, share) for share in (0.5, 0.9, 0.95)]
    assert promised[0] == pytest.approx(told.seconds)
    assert promised[2] == pytest.approx(told.high_s)
    assert promised == sorted(promised, key=lambda one: one or 0.0)
    calibration.observe("waiting", [OpenForecast(10.0, 0.6, 30.0, 100.0)], KEPT / 10)
    late = calibration.within_s("waiting", 10.0, 0.6, 0.9)
    assert late is not None
    assert late > (promised[1] or 0.0)
