import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.kv_memory import MOST_TOKENS, KvMemory, held_tokens
from tests.unit.scheduling.scheduling_builders import examples


def test_memory_is_counted_in_padded_tokens() -> None:
    memory = KvMemory(theta_bytes=1000, delta_bytes=10)
    assert memory.capacity_tokens == 100
    assert memory.batch_bytes(2, 30, 20) == 1000  # 2 · 50 tokens · 10 bytes
    assert memory.fits(2, 30, 20)
    assert not memory.fits(2, 30, 21)


def test_paged_memory_is_the_sum_over_rows_and_half_a_block_for_each() -> None:
    assert KvMemory(1000, 1).rows_tokens(3, 50, 90) == 150
    assert KvMemory(1000, 1, paged=True).rows_tokens(3, 50, 90) == 90
    assert KvMemory(1000, 1, paged=True, block_tokens=17).rows_tokens(3, 50, 90) == 90 + 3 * 8


def test_what_rows_share_is_memory_for_other_rows() -> None:
    memory = KvMemory(1000, 10, paged=True)
    assert memory.sharing(25).capacity_tokens == 125
    assert memory.sharing(0) is memory


def test_a_worker_may_take_fewer_rows_than_its_memory_holds() -> None:
    memory = KvMemory(1000, 1, max_rows=4)
    assert (memory.fits(4, 10, 10), memory.fits(5, 10, 10)) == (True, False)
    assert (memory.fixed_batch_size(50, 50), KvMemory(1000, 1).fixed_batch_size(50, 50)) == (4, 10)


def test_layers_with_a_window_hold_no_more_of_a_row_than_the_window() -> None:
    memory = KvMemory(
        theta_bytes=3600, delta_bytes=6, windowed_bytes=5, window_tokens=100
    )  # one layer of six holds all
    assert memory.batch_bytes(1, 300, 100) == 400 + 5 * 100  # of 6 * 400 bytes
    assert memory.fixed_batch_size(300, 100) == 4
    assert (memory.fits(4, 300, 100), memory.fits(5, 300, 100)) == (True, False)
    assert memory.rows_tokens(4, 400, 0) == pytest.approx(memory.capacity_tokens)
    assert (memory.batch_bytes(1, 60, 40), memory.longest_row_tokens) == (600, 3100)
    everywhere = KvMemory(600, 6, paged=True, block_tokens=5, windowed_bytes=6, window_tokens=20)
    assert (everywhere.longest_row_tokens, everywhere.tokens_within(6)) == (MOST_TOKENS, 100)
    assert everywhere.rows_tokens(3, 90, 8 + 90 + 90) == 60


@examples(60)
@given(
    layers=st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=5),
    window=st.integers(1, 40),
    theta=st.integers(0, 5000),
    tokens=st.lists(st.integers(1, 120), min_size=1, max_size=6),
)
def test_what_is_counted_is_what_each_layer_holds(
    layers: list[tuple[int, bool]], window: int, theta: int, tokens: list[int]
) -> None:
    delta, windowed = sum(size for size, _ in layers), sum(size for size, has_window in layers if has_window)
    memory = KvMemory(theta, delta, windowed_bytes=windowed, window_tokens=window)
    paged = KvMemory(theta, delta, paged=True, windowed_bytes=windowed, window_tokens=window)

    def row_bytes(length: int) -> int:
        return sum(size * (min(length, window) if has_window else length) for size, has_window in layers)

    rows, longest = len(tokens), max(tokens)
    assert memory.batch_bytes(rows, longest - 1, 1) == rows * row_bytes(longest)
    assert delta * memory.rows_tokens(rows, longest, 0) == pytest.approx(rows * row_bytes(longest))
    assert delta * paged.rows_tokens(rows, longest, sum(tokens)) >= sum(map(row_bytes, tokens)) - 1e-6
    assert memory.fits(rows, longest, 0) == (rows * row_bytes(longest) <= theta)
    within = memory.tokens_within(rows) // rows
    assert row_bytes(within) * rows <= theta
    assert within == MOST_TOKENS // rows or row_bytes(within + 1) * rows > theta
    each = held_tokens(np.array(tokens, np.float64), 1, memory.windowed_share, window)
    assert each.tolist() == [memory.held(length) for length in tokens]


@pytest.mark.parametrize(("block_tokens", "max_rows"), [(0, 1), (1, 0)])
def test_blocks_without_tokens_and_workers_without_rows_are_refused(block_tokens: int, max_rows: int) -> None:
    with pytest.raises(ValueError, match="a block has a token"):
        KvMemory(1, 1, True, block_tokens, max_rows)


@pytest.mark.parametrize(("windowed", "window"), [(-1, 1), (11, 1), (1, -1)])
def test_windows_are_of_a_part_of_a_token(windowed: int, window: int) -> None:
    with pytest.raises(ValueError, match="no window of"):
        KvMemory(1, 10, windowed_bytes=windowed, window_tokens=window)


@pytest.mark.parametrize(("theta", "delta"), [(-1, 1), (1, 0)])
def test_impossible_memory_is_refused(theta: int, delta: int) -> None:
    with pytest.raises(ValueError, match="Θ must not be negative"):
        KvMemory(theta, delta)
