"""Quantities are written as people read them."""

from datetime import UTC, datetime

import pytest

from webapp.dashboard.charts.quantities import count, duration, instant, memory, plural


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (None, "–"),
        (-1, "0 ms"),
        (0.0124, "12 ms"),
        (0.9996, "1.0 s"),
        (3.44, "3.4 s"),
        (59.96, "1 m 00 s"),
        (125, "2 m 05 s"),
        (12_000, "3 h 20 m"),
        (187_200, "2 d 4 h"),
    ],
)
def test_durations(seconds: float | None, written: str) -> None:
    assert duration(seconds) == written


def test_memory_counts_instants_and_nouns() -> None:
    assert [memory(size) for size in (12, 2048, 64 * 2**20, 1.5 * 2**30)] == ["12 B", "2 KiB", "64 MiB", "1.5 GiB"]
    assert [count(None), count(12_345), count(1.25, 1)] == ["–", "12,345", "1.2"]
    assert [instant(None), instant(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))] == ["–", "2026-01-02 03:04:05 UTC"]
    assert [plural(1, "batch"), plural(2, "batch"), plural(1000, "token")] == ["1 batch", "2 batches", "1,000 tokens"]
