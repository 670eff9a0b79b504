"""The rate limit counts each key by itself and says when to come back."""

import pytest

from webapp.rate_limits import RateLimit, RateLimited


def test_a_key_may_send_so_many_a_window_and_is_told_when_the_next_begins() -> None:
    limit = RateLimit("2/minute")
    limit.count(1, now=600.0)
    limit.count(1, now=640.0)
    with pytest.raises(RateLimited) as caught:
        limit.count(1, now=642.5)
    assert caught.value.retry_after_s == 18  # the window of 600 to 660 has 17.5 s left
    limit.count(1, now=660.0)


def test_keys_do_not_share_a_limit() -> None:
    limit = RateLimit("1/second")
    limit.count(1, now=5.0)
    limit.count(2, now=5.1)
    with pytest.raises(RateLimited):
        limit.count(2, now=5.2)


@pytest.mark.parametrize("rate", ["", "5", "5/day", "-5/second", "5 per minute", "1/seconds"])
def test_anything_but_a_rate_is_refused(rate: str) -> None:
    with pytest.raises(ValueError, match="1000/minute"):
        RateLimit(rate)
