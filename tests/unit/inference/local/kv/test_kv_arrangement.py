"""The blocks of each row."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.local.kv.kv_arrangement import BlockTables, blocks_for

CPU = torch.device("cpu")


@settings(deadline=None, derandomize=True)
@given(
    steps=st.lists(
        st.one_of(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.integers(0, 5)), min_size=1, max_size=12
    )
)
def test_no_block_is_lost_and_none_has_two_owners(steps):
    tables = BlockTables(blocks=12, block_tokens=4)
    for step in steps:
        before = [list(row) for row in tables.rows]
        if isinstance(step, int):
            if step < len(tables.rows):
                assert tables.clear(step) == before[step]
        elif tables.grow(step) is None:
            assert tables.rows == before
        else:
            assert all(len(row) >= blocks_for(tokens, 4) for row, tokens in zip(tables.rows, step, strict=False))
            assert all(row[: len(old)] == old for row, old in zip(tables.rows, before, strict=False))
        held = [block for row in tables.rows for block in row]
        assert len(set(held)) == len(held)
        assert tables.columns == 4 * max(map(len, tables.rows), default=0)
    for row in range(len(tables.rows)):
        tables.clear(row)
    assert tables.grow([48])


def test_the_lowest_free_block_is_taken_first():
    tables = BlockTables(blocks=8, block_tokens=4)
    tables.grow([8, 4, 8])
    assert tables.rows == [[0, 1], [2], [3, 4]]
    tables.clear(0)
    tables.grow([1, 12])
    assert tables.rows == [[0], [2, 1, 5], [3, 4]]


def test_the_indices_lead_from_rows_to_blocks_and_back():
    tables = BlockTables(blocks=8, block_tokens=4)
    tables.rows = [[5], [2, 0], [4]]
    index = tables.index(CPU)
    assert index.block_at.tolist() == [5, 5, 2, 0, 4, 4]  # behind a row's last block its first
    assert index.place_of.tolist() == [3, 0, 2, 0, 4, 0]  # blocks 1 and 3 are free
    assert index.row_of.tolist() == [1, 0, 1, 0, 2, 0]
    assert (index.by_row.tolist(), index.starts.tolist()) == ([5, 2, 0, 4], [0, 1, 3])
