"""Charts: minutes find their place on the axis, bars stand on each other, lines break at gaps."""

from datetime import UTC, datetime, timedelta

import pytest

from models.service_tables import Minute
from webapp.svg_charts import (
    BOTTOM,
    HEIGHT,
    MAX_BARS,
    TOP,
    Series,
    axis_scale,
    line_chart,
    short_number,
    stacked_bars,
    time_buckets,
)

NOW = datetime(2026, 11, 20, 21, 10, 42, tzinfo=UTC)
HOUR = timedelta(hours=1)


def minute(ago: int, **values: float | None) -> Minute:
    return Minute(minute=NOW.replace(second=0) - timedelta(minutes=ago), **values)


def completed(name: str = "completed") -> Series:
    return Series("good", name, lambda minutes: float(sum(m.completed for m in minutes)))


def longest() -> Series:
    return Series(
        "first", "longest", lambda ms: max((m.response_max_s for m in ms if m.response_max_s is not None), default=None)
    )


def test_each_minute_of_an_hour_has_its_own_place() -> None:
    found = time_buckets([minute(60), minute(1)], NOW, HOUR)
    assert len(found) == 60
    assert [len(bucket.minutes) for bucket in found] == [1] + [0] * 58 + [1]
    assert found[-1].start == NOW.replace(second=0) - timedelta(minutes=1)


def test_minutes_of_a_day_share_places_of_equal_length() -> None:
    found = time_buckets([minute(ago) for ago in range(1, 1441)], NOW, timedelta(days=1))
    assert len(found) == MAX_BARS
    assert {len(bucket.minutes) for bucket in found} == {24}


def test_minutes_outside_the_window_have_no_place() -> None:
    found = time_buckets([minute(61), minute(0), minute(-5)], NOW, HOUR)
    assert sum(len(bucket.minutes) for bucket in found) == 0


def test_bars_stand_on_each_other_and_say_their_values() -> None:
    chart = stacked_bars("t", "e", [completed("a"), completed("b")], time_buckets([minute(1, completed=50)], NOW, HOUR))
    lower, upper = chart.bars
    assert lower.y + lower.height == pytest.approx(HEIGHT - BOTTOM)
    assert upper.y + upper.height == pytest.approx(lower.y)
    assert upper.y == pytest.approx(TOP)  # 50 + 50 reach the top line of 100
    assert (lower.tooltip, upper.tooltip) == ("21:09: 50 a", "21:09: 50 b")
    assert not chart.empty


def test_a_line_breaks_where_there_is_nothing() -> None:
    minutes = [minute(10, response_max_s=1.0), minute(9, response_max_s=2.0), minute(5, response_max_s=4.0)]
    chart = line_chart("t", "e", [longest()], time_buckets(minutes, NOW, HOUR))
    assert [len(line.points.split()) for line in chart.lines] == [2, 2]  # the lone point is drawn twice
    assert [bar.tooltip for bar in chart.bars] == ["21:00: longest 1", "21:01: longest 2", "21:05: longest 4"]


def test_nothing_at_all_is_an_empty_chart() -> None:
    for draw, series in ((stacked_bars, completed()), (line_chart, longest())):
        chart = draw("t", "e", [series], time_buckets([], NOW, HOUR))
        assert chart.empty
        assert (chart.bars, chart.lines, chart.grid) == ([], [], [])


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
