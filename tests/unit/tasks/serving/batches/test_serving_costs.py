"""A worker's seconds are divided among its rows without remainder; its costs are learned from windows of steps."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.costs import StepWindow
from tasks.serving.batches.serving_costs import FIT_EVERY_S, DeviceSeconds, LearnedCosts, by_tokens

# an iteration takes 20 ms, 2 ms for each row and 10 µs for each cached token; a prefilled token 1 ms
SHAPES = ((1, 50, 0), (4, 100, 40), (16, 80, 200), (32, 300, 100), (8, 400, 0), (2, 900, 10)) * 6
WINDOWS = [
    StepWindow(
        10 * (0.02 + rows * (0.002 + 1e-5 * cached)) + 0.001 * prefilled,
        1.0,
        prefilled,
        row_reads=10 * rows * cached,
        row_steps=10 * rows,
        steps=10,
    )
    for rows, cached, prefilled in SHAPES
]


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


def test_the_costs_behind_a_servers_samples_are_found_again() -> None:
    learned = LearnedCosts(lambda: WINDOWS).curves(1.0)
    assert learned is not None
    assert learned.curves.prefill[0] == pytest.approx(0.001, rel=0.05)
    assert learned.curves.decode == pytest.approx([1e-5, 0.002, 0, 0.02], rel=0.05, abs=1e-5)


def test_nothing_is_fitted_again_before_its_time() -> None:
    slower = [replace(window, seconds=2 * window.seconds, at=1.0 + FIT_EVERY_S) for window in WINDOWS * 2]
    batches = iter([WINDOWS, slower])
    costs = LearnedCosts(lambda: next(batches))
    first = costs.curves(1.0)
    assert costs.curves(1.0 + 0.9 * FIT_EVERY_S) == first
    later = costs.curves(1.0 + FIT_EVERY_S)
    assert first is not None
    assert later is not None
    assert later.version == 2
    assert later.curves.decode[3] == pytest.approx(2 * first.curves.decode[3], rel=0.1)
