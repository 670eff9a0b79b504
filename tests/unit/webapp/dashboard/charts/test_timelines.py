"""Bars along a time axis: what a worker served, the queue as it should be served."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from models.operations.fleet_use import BatchSpan
from webapp.dashboard.charts.timelines import WIDTH, bar, merged, worker_strip

NOW = datetime(2026, 11, 20, 21, 10, 0, tzinfo=UTC)


def served(from_ago_s: float, to_ago_s: float | None, **more: Any) -> BatchSpan:
    values: dict[str, Any] = {"status": "running" if to_ago_s is None else "finished", "joins": False, "size": 4}
    values |= {"estimated_s": 5.0, "valid_tokens": 50} | more
    finished_at = None if to_ago_s is None else NOW - timedelta(seconds=to_ago_s)
    return BatchSpan(1, "w1", started_at=NOW - timedelta(seconds=from_ago_s), finished_at=finished_at, **values)


def test_times_that_overlap_count_once() -> None:
    assert merged([(5, 6), (0, 2), (1, 3), (3, 4)]) == [(0, 4), (5, 6)]


def test_a_worker_is_idle_while_nothing_runs() -> None:
    # of 100 s it served 80 to 60 s ago, 70 to 50 s ago, and since 10 s: 40 s
    strip = worker_strip([served(80, 60), served(70, 50), served(10, None)], NOW, back_s=100.0, up_s=500.0)
    assert strip.idle_share == pytest.approx(0.6)
    assert strip.tokens_per_s == pytest.approx(1.5)
    assert {one.kind for one in strip.timeline.bars} == {"good", "running"}
    assert strip.timeline.legend == [("good", "finished"), ("running", "running")]


def test_a_worker_that_has_just_come_was_not_idle_before() -> None:
    strip = worker_strip([served(10, 5)], NOW, back_s=100.0, up_s=10.0)
    assert strip.idle_share == pytest.approx(0.5)


def test_batches_of_an_earlier_process_show_that_the_worker_was_there() -> None:
    strip = worker_strip([served(50, 40), served(2, 1)], NOW, back_s=100.0, up_s=3.0)
    assert strip.idle_share == pytest.approx(1 - 11 / 50)


def test_a_batch_that_began_before_the_strip_is_cut_off() -> None:
    (one,) = worker_strip([served(150, 50)], NOW, back_s=100.0, up_s=500.0).timeline.bars
    assert one.x == 0.0
    assert one.width == pytest.approx(WIDTH / 2)


def test_no_bar_is_too_narrow_to_be_seen_or_leaves_the_picture() -> None:
    for start, end in ((0.0, 0.0), (10.0, 10.0), (-5.0, 20.0), (9.999, 10.0)):
        made = bar("good", start, end, 10.0, 0, "")
        assert made.width > 1
        assert 0 <= made.x <= made.x + made.width <= WIDTH
