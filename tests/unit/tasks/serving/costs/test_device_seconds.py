"""A worker's seconds are divided among its rows, all of them and no more."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.serving.costs.device_seconds import DeviceSeconds, by_tokens


def test_a_prefill_is_its_rows_own_and_a_step_is_everybodys():
    seconds = DeviceSeconds()
    seconds.advance(10.0)
    seconds.join({"a": 30, "b": 10}, 14.0)  # 3 s and 1 s of the four
    seconds.advance(16.0)  # one each
    seconds.join({"c": 5}, 16.5)  # half a second of c's own
    seconds.advance(19.5)  # one each
    assert seconds.leave("a") == pytest.approx(5.0)
    seconds.advance(21.5)
    assert seconds.leave("b") == pytest.approx(4.0)
    assert seconds.leave("c") == pytest.approx(2.5)
    assert seconds.leave("a") == 0.0


def test_time_without_rows_is_nobodys():
    seconds = DeviceSeconds()
    seconds.advance(5.0)
    seconds.advance(50.0)
    seconds.join({"a": 1}, 51.0)
    assert seconds.leave("a") == pytest.approx(1.0)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 9), st.floats(0.0, 9.0)), max_size=40))
def test_the_shares_add_up_to_the_time_with_rows(events: list[tuple[int, int, float]]):
    seconds, now, busy_s, given_s = DeviceSeconds(), 0.0, 0.0, 0.0
    rows: set[str] = set()
    for joiners, tokens, pause_s in events:
        busy_s += pause_s if rows else 0.0
        now += pause_s
        seconds.advance(now)
        if joiners:
            joining = {f"{now}-{len(rows)}-{n}": tokens + n for n in range(joiners)}
            now, busy_s = now + 0.5, busy_s + 0.5
            seconds.join(joining, now)
            rows |= joining.keys()
        elif rows:
            given_s += seconds.leave(rows.pop())
    given_s += sum(seconds.leave(row) for row in rows)
    assert given_s == pytest.approx(busy_s, abs=1e-6)


def test_a_batch_that_ran_to_completion_is_divided_by_tokens():
    assert by_tokens(8.0, {"a": 3, "b": 1}) == {"a": 6.0, "b": 2.0}
    assert by_tokens(8.0, {}) == {}
