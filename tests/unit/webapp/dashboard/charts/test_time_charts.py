"""Charts: points find their place on the axis, bars stand on each other, lines break at gaps."""

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
    line_chart,
    short_number,
    stacked_bars,
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


def test_numbers_are_short() -> None:
    assert [short_number(value) for value in (0, 0.25, 12, 999, 1500, 2_500_000)] == [
        "0",
        "0.25",
        "12",
        "999",
        "1.5k",
        "2.5M",
    ]
