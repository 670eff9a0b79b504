"""A job's makespan is compared with two ideals: all workers end together, and the rate of its middle lasts."""

import pytest

from benchmarks.mixed.job_alone import ServedLine, over_ideal


def test_an_even_job_is_as_fast_as_can_be() -> None:
    figures = over_ideal([ServedLine(float(n), 10, f"w{n % 2}") for n in range(1, 1001)])
    assert figures["makespan_s"] == 1000.0
    assert figures["over_mean_end"] == pytest.approx(1.0, abs=1e-3)
    assert figures["over_middle_rate"] == pytest.approx(1.0, abs=1e-3)


def test_a_worker_that_ends_late_shows_in_both() -> None:
    lines = [ServedLine(float(n), 10, f"w{n % 2}") for n in range(1, 1001)]
    figures = over_ideal([*lines, ServedLine(1500.0, 10, "w0")])
    assert figures["over_mean_end"] == pytest.approx(1500 / ((1500 + 999) / 2))
    assert figures["over_middle_rate"] == pytest.approx(1500 / 1001, rel=1e-2)
