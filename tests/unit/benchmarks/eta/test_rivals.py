"""What the naive rivals of an ETA know at a request's arrival."""

import pytest

from benchmarks.eta.rivals import FEWEST, HOUR_S, History, Served, beside_rivals


def test_rivals_know_the_answers_of_the_last_hour_and_the_requests_in_the_service() -> None:
    # one request a second, answered after 3 s: 8 answers in 10 s, and of those before this one two are still served
    served = [Served(float(second), second + 3.0) for second in range(20)]
    known = History(served).rivals(10.0)
    assert known is not None
    assert known.last_hour_s == 3
    assert known.little_s == pytest.approx((2 + 1) * 10 / 8)
    assert known.hour == (3, 3)
    assert known.qlm_s is None


def test_answers_older_than_an_hour_say_nothing() -> None:
    old = [Served(float(second), second + 50.0) for second in range(20)]
    new = [Served(HOUR_S + 100 + second, HOUR_S + 102 + second) for second in range(FEWEST)]
    known = History([*old, *new]).rivals(HOUR_S + 200)
    assert known is not None
    assert known.last_hour_s == 2
    assert known.little_s == pytest.approx(HOUR_S / FEWEST)


def test_the_spread_holds_nine_of_ten_response_times() -> None:
    known = History(Served(float(n), n + 1.0 + n / 10) for n in range(101)).rivals(200.0)
    assert known is not None
    assert known.hour[1] - known.hour[0] == pytest.approx(9)


def test_with_few_answers_there_is_no_rival() -> None:
    assert History([Served(0.0, 1.0)] * (FEWEST - 1)).rivals(5.0) is None


def test_etas_are_compared_where_there_are_rivals() -> None:
    served = [Served(float(second), second + 3.0) for second in range(20)]
    early, late = (served[0], 9.0, 2.0), (served[10], 14.0, 2.0)
    assert beside_rivals([early, late], History(served)) == {
        "error_s": 1,
        "last_hour_error_s": 0,
        "little_error_s": 0.75,
        "width_s": 2,
        "last_hour_width_s": 0,
        "last_hour_coverage": 1,
        "mean_width_s": 2,
    }
    assert beside_rivals([early], History(served)) == {}


def test_qlm_waits_for_the_mean_tokens_of_those_ahead_at_a_constant_throughput() -> None:
    # 10 or 30 tokens each, served in 1 s; 20 requests are ahead at 100 tokens a second: 4 s, then its own second
    ended = [Served(0.0, 2.0, 1.0, tokens) for tokens in (10, 30) * 50]
    ahead = [Served(3.0, 90.0, 89.0, 20) for _ in range(20)]
    known = History([*ended, *ahead], full_tokens_per_s=100.0).rivals(3.0 + 1e-6)
    assert known is not None
    assert known.qlm_s == pytest.approx(5.0)
    # the sum of 20 lengths with a deviation of 10 tokens deviates by 44.7 tokens, 0.447 s
    assert known.qlm == pytest.approx((5.0 - 1.645 * 0.447, 5.0 + 1.645 * 0.447), abs=0.01)
