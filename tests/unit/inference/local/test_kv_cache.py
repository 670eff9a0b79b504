"""The cache's memory: grown in steps within the budget, content kept, rows copied to the host and back."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.local.kv_cache import COLUMN_STEP, BudgetExceeded, KvCache, KvLayout

LAYOUT = KvLayout(layers=2, heads=3, key_dim=4, value_dim=5, dtype=torch.float32, device=torch.device("cpu"))


def states(rows, length, seed):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(rows, LAYOUT.heads, length, dim, generator=generator) for dim in (4, 5))


def filled(budget_bytes=2**20):
    """A cache with two rows of six tokens, and what was written to each layer."""
    kv = KvCache(LAYOUT, budget_bytes)
    kv.reserve(2, 6)
    kv.prepare_prefill([0, 1], 6)
    written = [states(2, 6, seed) for seed in range(LAYOUT.layers)]
    for layer, (keys, values) in enumerate(written):
        kv.update(keys, values, layer)
    return kv, written


def test_a_token_takes_a_key_and_a_value_for_each_head_of_each_layer():
    assert LAYOUT.token_bytes == 2 * 3 * (4 + 5) * 4


@settings(deadline=None, derandomize=True)
@given(
    steps=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 300)), max_size=12), budget_tokens=st.integers(1, 2000)
)
def test_what_is_reserved_fits_and_stays_within_the_budget(steps, budget_tokens):
    kv = KvCache(LAYOUT, budget_tokens * LAYOUT.token_bytes)
    for rows, columns in steps:
        if rows * columns > budget_tokens:
            with pytest.raises(BudgetExceeded):
                kv.reserve(rows, columns)
        else:
            kv.reserve(rows, columns)
            assert kv.rows >= rows
            assert kv.columns >= columns
        assert kv.nbytes == kv.rows * kv.columns * LAYOUT.token_bytes <= kv.budget_bytes


def test_growth_by_single_tokens_rarely_reallocates():
    kv = KvCache(LAYOUT, 2**30)
    moves = sum(kv.reserve(4, columns) for columns in range(1, 1000))
    assert moves <= 1000 / COLUMN_STEP


def test_what_was_written_survives_growth_and_is_read_beside_the_new_token():
    kv, written = filled()
    kv.reserve(5, 100, keep=(2, 6))
    token = states(2, 1, 9)
    slots = torch.tensor([(row * LAYOUT.heads + head) * kv.columns + 6 for row in range(2) for head in range(3)])
    width = kv.prepare_decode(slots, lengths=[6, 6], width=7)
    assert width >= 7
    for layer in range(LAYOUT.layers):
        for read, old, new in zip(kv.update(*token, layer), written[layer], token, strict=True):
            assert torch.equal(read[:, :, :6], old)
            assert torch.equal(read[:, :, 6:7], new)
            assert not read[:, :, 7:].any()


@pytest.mark.parametrize(
    ("hidden_tokens", "pieces"),
    [
        (0, [(0, 1, 12), (1, 2, 32), (2, 4, 10)]),
        (20, [(0, 2, 32), (2, 4, 10)]),  # 32 - 12 tokens are hidden in the first row
        (1000, [(0, 4, 32)]),
    ],
)
def test_neighbouring_rows_are_read_together_if_few_columns_are_hidden(hidden_tokens, pieces):
    kv = KvCache(LAYOUT, 2**20, piece_bytes=hidden_tokens * LAYOUT.token_bytes // LAYOUT.layers)
    kv.reserve(4, 64)
    assert kv.prepare_decode(torch.zeros(12, dtype=torch.long), lengths=[5, 25, 3, 3], width=26) == 32  # 7 to come
    assert [(piece.start, piece.stop, piece.width) for piece in kv.pieces] == pieces
    for (start, stop, width), (keys, values) in zip(pieces, kv.piece_views(1), strict=True):
        assert (keys.shape, values.shape) == ((stop - start, 3, width, 4), (stop - start, 3, width, 5))


def test_a_row_goes_to_the_host_and_into_another_place():
    kv, written = filled()
    host = kv.row_to_host(1, 6)
    kv.release()
    assert kv.nbytes == 0
    kv.reserve(3, 6)
    kv.row_from_host(2, host)
    kv.copy_row(2, 0, 6)
    assert all(
        torch.equal(side, old[1])
        for layer, old_layer in zip(kv.row_to_host(0, 6), written, strict=True)
        for side, old in zip(layer, old_layer, strict=True)
    )


def test_memory_is_freed_once_a_quarter_would_do():
    kv = KvCache(LAYOUT, 2**30)
    kv.reserve(16, 200)
    full = kv.nbytes
    assert not kv.trim(12, 180)
    assert kv.trim(2, 20)
    assert kv.nbytes < full / 4


def test_a_cache_whose_columns_are_all_taken_shrinks_to_fewer_rows_and_one_column_more():
    kv, written = filled()
    columns = kv.columns
    kv.reserve(40, columns, keep=(2, 6))
    assert kv.trim(2, columns + 1)
    assert kv.columns > columns
    for layer, (keys, values) in enumerate(written):
        kept_keys, kept_values = kv.row_to_host(1, 6)[layer]
        assert torch.equal(kept_keys, keys[1])
        assert torch.equal(kept_values, values[1])
