"""Durations as OpenAI's clients read them in x-ratelimit-reset-*."""

import pytest

from webapp.tenants.limit_headers import go_duration


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "0ms"),
        (0.0171, "18ms"),
        (0.9999, "1s"),
        (6.5, "6.5s"),
        (59.9999, "1m0s"),
        (360.0, "6m0s"),
        (3603.25, "1h0m3.25s"),
        (90_061.0, "25h1m1s"),
    ],
)
def test_a_duration_is_written_as_go_writes_it(seconds: float, shown: str) -> None:
    assert go_duration(seconds) == shown
