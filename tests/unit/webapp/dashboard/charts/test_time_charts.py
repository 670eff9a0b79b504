"""Charts: points find their place on the axis, bars say their values, lines break at gaps."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from models.operations.service_history import LARGEST, SUMMED, HistoryPoint
from webapp.dashboard.charts.time_charts import (
    BOTTOM,
    HEIGHT,
    TOP,
    Series,
    Slot,
    bar_chart,
    line_chart,
    short_number,
    time_slots,
)

NOW = datetime(2026, 11, 20, 21, 10, 42, tzinfo=UTC)


def point(ago_s: int, seconds: int = 60, **values: Any) -> HistoryPoint:
    at = NOW.replace(second=0) - timedelta(seconds=ago_s)
    nothing = dict.fromkeys((*SUMMED, *LARGEST, "tau"), 0)
    return HistoryPoint(at=at, seconds=seconds, **(nothing | values))


def slots(points: list[HistoryPoint]) -> list[Slot]:
    return time_slots(points, NOW, 3600, 60)


def longest() -> Series:
    return Series("first", "longest", lambda p: p.response_p99_s)


def test_each_minute_of_an_hour_has_its_own_place_and_the_last_is_the_present_one() -> None:
    found = slots([point(59 * 60), point(0)])
    assert len(found) == 60
    assert [n for n, slot in enumerate(found) if slot.point] == [0, 59]
    assert found[-1].start == NOW.replace(second=0)


def test_bars_say_their_values_and_one_of_zero_is_invisible() -> None:
    points = [point(120, answers=0), point(60, answers=100)]
    chart = bar_chart(slots(points), "t", "e", Series("good", "answers", lambda p: p.answers), "nothing")
    zero, bar = chart.bars
    assert bar.y + bar.height == pytest.approx(HEIGHT - BOTTOM)
    assert bar.y == pytest.approx(TOP)  # 100 reach the top line of 100
    assert [(one.kind, one.tooltip) for one in (zero, bar)] == [
        ("hover", "20 Nov 21:08: 0 answers"),
        ("good", "20 Nov 21:09: 100 answers"),
    ]
    assert (chart.empty, chart.nothing) == (False, "")
    assert bar_chart(slots(points[:1]), "t", "e", Series("good", "a", lambda p: p.answers), "nothing").nothing


def test_a_chart_without_points_is_empty() -> None:
    assert bar_chart(slots([]), "t", "e", Series("good", "a", lambda p: p.answers), "nothing").empty


def test_a_line_breaks_where_there_is_nothing() -> None:
    points = [point(600, response_p99_s=1.0), point(540, response_p99_s=2.0), point(300, response_p99_s=4.0)]
    chart = line_chart(slots(points), "t", "e", [longest()])
    assert [len(line.points.split()) for line in chart.lines] == [2, 2]  # the lone point is drawn twice
    assert [bar.tooltip.split(" ", 2)[2] for bar in chart.bars] == [
        "21:00: longest 1",
        "21:01: longest 2",
        "21:05: longest 4",
    ]


def test_numbers_are_short() -> None:
    assert [short_number(value) for value in (0, 0.25, 12, 999, 1500, 2_500_000)] == [
        "0",
        "0.25",
        "12",
        "999",
        "1.5k",
        "2.5M",
    ]
