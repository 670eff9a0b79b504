"""The cache's memory: taken once, held within the budget, content kept, rows copied to the host and back."""

from itertools import chain

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.local.kv.kv_arrangement import BlockRows
from inference.local.kv.kv_budget import COLUMN_STEP, KvLayout, LayerShape, LayerSlots
from inference.local.kv.kv_cache import BudgetExceeded, KvCache

LAYOUT = KvLayout((LayerShape(3, 4, 5),) * 2, torch.float32, torch.device("cpu"))


def states(rows, length, seed):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(rows, 3, length, dim, generator=generator) for dim in (4, 5))


def filled(budget_bytes=2**20):
    """A cache with two rows of six tokens, and the content of each layer."""
    kv = KvCache(LAYOUT, budget_bytes)
    kv.reserve([6, 6])
    kv.prepare_prefill([0, 1], [6, 6])
    written = [states(2, 6, seed) for seed in range(2)]
    for layer, (keys, values) in enumerate(written):
        kv.update(keys, values, layer)
    return kv, written


@settings(deadline=None, derandomize=True)
@given(
    steps=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 300)), max_size=12), budget_tokens=st.integers(1, 2000)
)
def test_what_is_reserved_fits_and_stays_within_the_budget(steps, budget_tokens):
    kv = KvCache(LAYOUT, budget_tokens * LAYOUT.token_bytes)
    for rows, columns in steps:
        if rows * columns > budget_tokens:
            with pytest.raises(BudgetExceeded):
                kv.reserve([columns] * rows)
        else:
            kv.reserve([1] * (rows - 1) + [columns])
            assert kv.arrangement.blocks >= rows
            assert kv.arrangement.columns >= columns
        held = kv.arrangement.blocks * kv.arrangement.columns * LAYOUT.token_bytes
        assert kv.nbytes == held <= kv.budget_bytes


def test_growth_by_single_tokens_rarely_reallocates():
    kv = KvCache(LAYOUT, 2**30)
    moves = sum(kv.reserve([columns] * 4) for columns in range(1, 1000))
    assert moves <= 1000 / COLUMN_STEP


@pytest.mark.parametrize(
    ("hidden_tokens", "pieces"),
    [
        (0, [(0, 1, 12), (1, 2, 32), (2, 4, 10)]),
        (20, [(0, 2, 32), (2, 4, 10)]),  # 32 - 12 tokens are hidden in the first row
        (1000, [(0, 4, 32)]),
    ],
)
def test_neighbouring_rows_are_read_together_if_few_columns_are_hidden(hidden_tokens, pieces):
    kv = KvCache(LAYOUT, 2**20, piece_bytes=hidden_tokens * LAYOUT.token_bytes // 2)
    kv.reserve([64] * 4)
    assert (
        kv.prepare_decode({LayerSlots(3): torch.zeros(12, dtype=torch.long)}, lengths=[5, 25, 3, 3], width=26) == 32
    )  # 7 to come
    assert [(piece.start, piece.stop, piece.width) for piece in kv.pieces] == pieces
    for (start, stop, width), (keys, values) in zip(pieces, kv.piece_views(1), strict=True):
        assert (keys.shape, values.shape) == ((stop - start, 3, width, 4), (stop - start, 3, width, 5))


def test_a_row_is_read_to_its_last_token_when_a_longer_one_has_ended_near_the_last_column():
    kv = KvCache(LAYOUT, 2**20, piece_bytes=0)
    kv.reserve([51, 51])
    assert kv.arrangement.columns == 64
    lengths = [60, 50]  # the first has ended and stays at 60; after ten steps the second one has 60
    for step in range(1, 14):
        width = kv.prepare_decode({LayerSlots(3): torch.zeros(6, dtype=torch.long)}, lengths, width=60 + step)
        assert width <= 64
        read = next(piece.width for piece in kv.pieces if piece.stop == 2)
        assert 50 + step <= read <= width


def addresses(kv):
    """The address of each layer's memory, in which there are two rows."""
    kv.prepare_prefill([0], [1])
    token = states(2, 1, 0)
    kv.prepare_decode(kv.arrangement.slots_at([0, 0]), lengths=[0, 0], width=1)
    return [tensor.data_ptr() for layer in range(2) for tensor in kv.update(*token, layer)]


def test_memory_is_taken_once_and_its_pages_when_they_are_written():
    kv = KvCache(LAYOUT, 2**34)  # 16 GiB, which nobody has for a test
    kv.reserve([6, 6])
    first = addresses(kv)
    kv.reserve([100] * 5, kept=[6, 6])
    kv.clear(in_blocks=True)
    kv.reserve([200, 1000])
    assert addresses(kv) == first


@pytest.mark.parametrize("in_blocks", [False, True])
def test_the_next_rows_find_nothing_of_those_before(in_blocks):
    kv, _ = filled()
    kv.clear(in_blocks)
    assert kv.nbytes == 0
    kv.reserve([6, 30])
    assert not any(side.any() for row, length in enumerate([6, 30]) for side in chain(*kv.row_copy(row, length)))


def in_blocks():
    """A cache of 12 blocks of four tokens with rows of 3, 30 and 5 tokens, and its content."""
    kv = KvCache(LAYOUT, 48 * LAYOUT.token_bytes, block_tokens=4, in_blocks=True)
    lengths = [3, 30, 5]
    kv.reserve(lengths)
    assert kv.in_blocks
    kv.prepare_prefill([0, 1, 2], lengths)
    for layer in range(2):
        kv.update(*states(3, 30, layer), layer)
    return kv, [kv.row_copy(row, length) for row, length in enumerate(lengths)]


def same(one, other):
    return all(torch.equal(*sides) for layers in zip(one, other, strict=True) for sides in zip(*layers, strict=True))


def test_rows_in_blocks_take_no_more_than_their_own_tokens():
    kv, rows = in_blocks()
    for layer in range(2):
        written = states(3, 30, layer)
        for row, held in enumerate(rows):
            for side, whole in zip(held[layer], written, strict=True):
                assert torch.equal(side, whole[row, :, : side.shape[1]])
    assert kv.nbytes == kv.needed_bytes([3, 30, 5]) == (1 + 8 + 2) * 4 * LAYOUT.token_bytes
    kv.reserve([3, 33, 5])
    with pytest.raises(BudgetExceeded) as raised:
        kv.reserve([5, 33, 9])
    assert raised.value.needed_bytes == (2 + 9 + 3) * 4 * LAYOUT.token_bytes
    assert all(same(kv.row_copy(row, length), rows[row]) for row, length in enumerate([3, 30, 5]))


@settings(deadline=None, derandomize=True, max_examples=50)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=12),
    leave=st.lists(st.integers(0, 11), max_size=12, unique=True),
)
def test_rows_that_stay_are_moved_together_with_all_that_they_hold(lengths, leave):
    kv = KvCache(LAYOUT, 200 * 4 * LAYOUT.token_bytes, block_tokens=4, in_blocks=True)
    kv.reserve(lengths)
    for row, length in enumerate(lengths):
        kv.write_row(
            row, length, [tuple(side[0] for side in states(1, length, 10 * row + layer)) for layer in range(2)]
        )
    before = {row: kv.row_copy(row, length) for row, length in enumerate(lengths) if row not in leave}
    assert isinstance(kv.arrangement, BlockRows)
    tables = kv.arrangement.tables
    for row in {row for row in leave if row < len(lengths)}:
        kv._carry_out(tables.clear(row))
    kv.close_gaps()
    assert not kv.close_gaps()
    held = sorted(block for row in tables.rows for block in row)
    assert len(held) == len(set(held)) == tables.taken
    assert not held or 2 * (held[-1] + 1) <= 3 * len(held)
    assert all(same(kv.row_copy(row, lengths[row]), content) for row, content in before.items())
    # rows that grow get blocks of zeros, also where blocks were moved from, and each block only once
    kv.reserve([40] * len(lengths))
    assert not any(side[:, lengths[row] :].any() for row in before for side in chain(*kv.row_copy(row, 40)))
