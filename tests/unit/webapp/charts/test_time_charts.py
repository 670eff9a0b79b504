"""Charts: points find their place on the axis, bars stand on each other, lines break at gaps."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from models.operations.service_history import LARGEST, SUMMED, HistoryPoint
from webapp.charts.page_charts import RANGES
from webapp.charts.time_charts import (
    BOTTOM,
    HEIGHT,
    TOP,
    Series,
    Slot,
    axis_scale,
    line_chart,
    short_number,
    stacked_bars,
    time_labels,
    time_slots,
)

NOW = datetime(2026, 11, 20, 21, 10, 42, tzinfo=UTC)


def point(ago_s: int, seconds: int = 60, **values: Any) -> HistoryPoint:
    at = NOW.replace(second=0) - timedelta(seconds=ago_s)
    nothing = dict.fromkeys((*SUMMED, *LARGEST, "tau"), 0)
    return HistoryPoint(at=at, seconds=seconds, **(nothing | values))


def slots(points: list[HistoryPoint]) -> list[Slot]:
    return time_slots(points, NOW, 3600, 60)


def answers(name: str = "answers") -> Series:
    return Series("good", name, lambda p: p.answers)


def longest() -> Series:
    return Series("first", "longest", lambda p: p.response_p99_s)


def test_each_minute_of_an_hour_has_its_own_place_and_the_last_is_the_present_one() -> None:
    found = slots([point(59 * 60), point(0)])
    assert len(found) == 60
    assert [n for n, slot in enumerate(found) if slot.point] == [0, 59]
    assert found[-1].start == NOW.replace(second=0)


def test_points_outside_the_window_have_no_place() -> None:
    assert not any(slot.point for slot in slots([point(60 * 60), point(-60)]))


@pytest.mark.parametrize("over", RANGES.values(), ids=RANGES)
def test_every_range_has_few_enough_places_to_be_seen(over: Any) -> None:
    assert 60 <= len(time_slots([], NOW, over.back_s, over.step_s)) <= 90


def test_a_week_is_labelled_by_days_and_an_hour_by_the_clock() -> None:
    assert time_labels(slots([]))[0][1] == "20:11"
    assert time_labels(time_slots([], NOW, 7 * 86_400, 7200))[0][1] == "13 Nov"


def test_bars_stand_on_each_other_and_say_their_values() -> None:
    chart = stacked_bars("t", "e", [answers("a"), answers("b")], slots([point(60, answers=50)]))
    lower, upper = chart.bars
    assert lower.y + lower.height == pytest.approx(HEIGHT - BOTTOM)
    assert upper.y + upper.height == pytest.approx(lower.y)
    assert upper.y == pytest.approx(TOP)  # 50 + 50 reach the top line of 100
    assert (lower.tooltip, upper.tooltip) == ("20 Nov 21:09: 50 a", "20 Nov 21:09: 50 b")
    assert not chart.empty


def test_a_line_breaks_where_there_is_nothing() -> None:
    points = [point(600, response_p99_s=1.0), point(540, response_p99_s=2.0), point(300, response_p99_s=4.0)]
    chart = line_chart("t", "e", [longest()], slots(points))
    assert [len(line.points.split()) for line in chart.lines] == [2, 2]  # the lone point is drawn twice
    assert [bar.tooltip.split(" ", 2)[2] for bar in chart.bars] == [
        "21:00: longest 1",
        "21:01: longest 2",
        "21:05: longest 4",
    ]


def test_a_line_goes_on_faintly_over_steps_without_an_answer() -> None:
    values = [(540, 1.0), (480, None), (420, None), (360, 4.0), (300, 5.0)]
    chart = line_chart("t", "e", [longest()], slots([point(ago_s, response_p99_s=s) for ago_s, s in values]))
    assert [(len(line.points.split()), line.bridge, line.lone) for line in chart.lines] == [
        (3, True, False),
        (2, False, True),  # the lone point is drawn twice
        (2, False, False),
    ]


def test_the_first_series_is_drawn_over_the_others() -> None:
    both = [longest(), Series("second", "answers", lambda p: p.answers)]
    chart = line_chart("t", "e", both, slots([point(60), point(0)]))
    assert [line.kind for line in chart.lines] == ["second", "first"]
    assert chart.colours == [("first", "longest"), ("second", "answers")]


def test_bars_that_are_all_zero_are_said_in_words() -> None:
    series = [answers()]
    assert stacked_bars("t", "e", series, slots([point(60)]), "No answer came").nothing == "No answer came"
    assert stacked_bars("t", "e", series, slots([point(60, answers=1)]), "No answer came").nothing == ""


def test_nothing_at_all_is_an_empty_chart() -> None:
    for draw, series in ((stacked_bars, answers()), (line_chart, longest())):
        chart = draw("t", "e", [series], slots([]))
        assert chart.empty
        assert (chart.bars, chart.lines) == ([], [])


def test_values_that_are_all_zero_have_an_axis() -> None:
    (zero,) = line_chart("t", "e", [answers()], slots([point(60), point(0)])).grid
    assert zero == (HEIGHT - BOTTOM, "0")


def test_a_time_without_failures_is_no_empty_chart() -> None:
    chart = stacked_bars("t", "e", [answers()], slots([point(60)]))
    assert not chart.empty
    assert [bar.tooltip for bar in chart.bars] == ["20 Nov 21:09: 0 answers"]


@pytest.mark.parametrize(("highest", "top"), [(0.3, 0.3), (1, 1), (1.1, 1.2), (107, 120), (980, 1000), (9e6, 1e7)])
def test_the_top_line_is_round_and_not_far_above(highest: float, top: float) -> None:
    assert axis_scale(highest)[0] == pytest.approx(top)


def test_numbers_are_short() -> None:
    assert [short_number(value) for value in (0, 0.25, 12, 999, 1500, 2_500_000)] == [
        "0",
        "0.25",
        "12",
        "999",
        "1.5k",
        "2.5M",
    ]
