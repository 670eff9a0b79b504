"""Attention over blocks against attention over a rectangle of the same tokens."""

import pytest
import torch

from inference.local.decode_attention import by_kernel
from inference.local.memory.block_attention import by_blocks
from inference.local.memory.block_tables import BlockTables

LENGTHS, BLOCK_TOKENS, KEY_HEADS, KEY_DIM, VALUE_DIM = (5, 12, 1), 4, 2, 16, 8


def in_both(dtype, queries=3):
    """The same tokens as a rectangle and in the blocks of tables: query, keys, values, mask of each, and the index."""
    torch.manual_seed(3)
    columns = 12
    query = torch.randn(len(LENGTHS), KEY_HEADS, queries, KEY_DIM).to(dtype)
    rectangle = [torch.randn(len(LENGTHS), KEY_HEADS, columns, dim).to(dtype) for dim in (KEY_DIM, VALUE_DIM)]
    hidden = torch.arange(columns) >= torch.tensor(LENGTHS)[:, None]
    mask = hidden.to(dtype).mul_(torch.finfo(dtype).min)[:, None, None, :]
    tables = BlockTables(blocks=9, block_tokens=BLOCK_TOKENS)
    tables.rows = [[7, 2], [0, 5, 3], [4]]
    pool = [torch.zeros(8, KEY_HEADS, BLOCK_TOKENS, dim, dtype=dtype) for dim in (KEY_DIM, VALUE_DIM)]
    for row, blocks in enumerate(tables.rows):
        for number, block in enumerate(blocks):
            for side, of_rows in zip(pool, rectangle, strict=True):
                side[block] = of_rows[row, :, number * BLOCK_TOKENS : (number + 1) * BLOCK_TOKENS]
    return query, rectangle, pool, mask, tables.index(torch.device("cpu"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("queries", [1, 3])
def test_blocks_attend_as_a_rectangle_does(dtype, queries):
    query, rectangle, pool, mask, index = in_both(dtype, queries)
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    expected = by_kernel(query.float(), rectangle[0].float(), rectangle[1].float(), mask.float())
    attended = by_blocks(query, pool[0], pool[1], mask, index)
    torch.testing.assert_close(attended.float(), expected, rtol=tolerance, atol=tolerance)


def test_a_row_that_has_no_numbers_keeps_them_from_the_others():
    query, _, pool, mask, index = in_both(torch.float32)
    before = by_blocks(query, pool[0], pool[1], mask, index)
    for side in pool:
        side[[0, 5, 3]] = torch.nan  # of row 1
        side[[1, 6]] = torch.nan  # of none
    query[1] = torch.nan
    after = by_blocks(query, pool[0], pool[1], mask, index)
    assert torch.equal(after[[0, 2]], before[[0, 2]])
    assert after[1].isnan().all()
