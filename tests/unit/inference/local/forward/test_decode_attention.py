"""The ways of attention in a decoding step give the same."""

from functools import partial

import pytest
import torch

from inference.local.forward.decode_attention import (
    by_bags,
    by_blocks,
    by_groups,
    by_kernel,
    by_products,
)
from inference.local.kv.block_tables import BlockTables, index_of_blocks
from inference.local.kv.query_groups import query_groups, token_rows

DTYPES = [torch.float32, torch.bfloat16]


# 24 of 32 columns are read: by bags either whole blocks, or only the columns
WAYS = [by_products, partial(by_bags, whole_until=2), partial(by_bags, whole_until=1)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("attend", WAYS)
def test_every_way_attends_as_the_kernel_does_and_to_no_hidden_column(dtype, queries, attend):
    torch.manual_seed(3)
    rows, key_heads, columns, dim = 4, 2, 24, 16
    query = torch.randn(rows, key_heads, queries, dim).to(dtype)
    cache = torch.randn(2, rows + 2, key_heads, columns + 8, dim).to(dtype)
    keys, values = cache[:, 1:-1, :, :columns]  # a view with gaps, as attention reads the cache
    hidden = torch.arange(columns) >= torch.tensor([[24], [1], [7], [16]])
    mask = hidden.to(dtype).mul_(torch.finfo(dtype).min)[:, None, None, :]
    before = attend(query, keys, values, mask)
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    torch.testing.assert_close(before, by_kernel(query, keys, values, mask), rtol=tolerance, atol=tolerance)
    values.masked_fill_(hidden[:, None, :, None], 1e4)
    assert torch.equal(attend(query, keys, values, mask), before)


def test_bags_never_use_what_lies_behind_the_columns_that_are_read():
    torch.manual_seed(3)
    query, cache = torch.randn(4, 2, 3, 16), torch.randn(2, 4, 2, 32, 16)
    keys, values = cache[:, :, :, :24]
    mask = torch.zeros(4, 1, 1, 24)
    before = by_bags(query, keys, values, mask, whole_until=2)
    cache[:, :, :, 24:] = torch.nan
    assert torch.equal(by_bags(query, keys, values, mask, whole_until=2), before)


CPU = torch.device("cpu")
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
    return query, rectangle, pool, mask, index_of_blocks(tables.rows, CPU)


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
        side[[0, 5, 3]] = torch.nan  # the blocks of row 1
        side[[1, 6]] = torch.nan  # blocks of no row
    query[1] = torch.nan
    after = by_blocks(query, pool[0], pool[1], mask, index)
    assert torch.equal(after[[0, 2]], before[[0, 2]])
    assert after[1].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("queries", [1, 3])
def test_rows_attend_to_shared_blocks_as_to_their_own(dtype, queries):
    tables = BlockTables(blocks=9, block_tokens=BLOCK_TOKENS)
    tables.rows = [[3, 0], [3, 5, 1], [3, 5, 2], [6], [3]]
    pool = [torch.randn(7, KEY_HEADS, BLOCK_TOKENS, dim).to(dtype) for dim in (KEY_DIM, VALUE_DIM)]
    query = torch.randn(5, KEY_HEADS, queries, KEY_DIM).to(dtype)
    lengths, columns = torch.tensor([6, 9, 12, 1, 4]), 3 * BLOCK_TOKENS
    mask = (torch.arange(columns) >= lengths[:, None]).to(dtype).mul_(torch.finfo(dtype).min)[:, None, None, :]
    padded = torch.tensor([(blocks + blocks[:1] * 2)[:3] for blocks in tables.rows])
    keys, values = (side[padded].transpose(1, 2).flatten(2, 3).float() for side in pool)
    attended = by_blocks(query, pool[0], pool[1], mask, index_of_blocks(tables.rows, CPU))
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    expected = by_kernel(query.float(), keys, values, mask.float())
    torch.testing.assert_close(attended.float(), expected, rtol=tolerance, atol=tolerance)


def several_tokens(counts, call_products, dtype=torch.float32, shared=3):
    """Rows with these numbers of newest tokens: their queries, mask and groups, and the blocks' keys and values."""
    _, _, pool, _, _ = in_both(dtype)
    tables = BlockTables(blocks=9, block_tokens=BLOCK_TOKENS)
    tables.rows = [[7, 2], [0, 5, 3], [4]]
    numbered = token_rows(counts)
    query = torch.randn(len(numbered), KEY_HEADS, shared, KEY_DIM).to(dtype)
    ends = torch.tensor([LENGTHS[row] - counts[row] + place + 1 for row, place in numbered])
    hidden = torch.arange(tables.columns) >= ends[:, None]
    mask = hidden.to(dtype).mul_(torch.finfo(dtype).min)[:, None, None, :]
    return numbered, query, mask, query_groups(tables, counts, CPU, call_products), pool, tables


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shared", [1, 3])
@pytest.mark.parametrize("counts", [(1, 1, 1), (3, 1, 1), (1, 4, 1), (2, 5, 1)])
@pytest.mark.parametrize("call_products", [0, 5, 99])  # rows that differ attend in calls of their own, or together
def test_each_of_a_rows_tokens_attends_as_it_would_alone(dtype, shared, counts, call_products):
    numbered, query, mask, groups, pool, tables = several_tokens(counts, call_products, dtype, shared)
    attended = by_groups(query, pool[0], pool[1], groups, groups.masks(mask, shared))
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    for number, (row, _) in enumerate(numbered):
        alone = BlockTables(blocks=9, block_tokens=BLOCK_TOKENS)
        alone.rows = [tables.rows[row]]
        index, own_mask = index_of_blocks(alone.rows, CPU), mask[number, None, ..., : alone.columns]
        keys, values = (side[: len(index.row_of)] for side in pool)
        own = by_blocks(query[number, None], keys, values, own_mask, index)
        torch.testing.assert_close(attended[number], own[0], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("counts", [(1, 1, 1), (1, 4, 1), (3, 1, 1)])
@pytest.mark.parametrize("call_products", [0, 99])
def test_a_row_that_has_no_numbers_keeps_them_from_the_others_in_its_pass(counts, call_products):
    numbered, query, mask, groups, pool, _ = several_tokens(counts, call_products)
    masks = groups.masks(mask, 3)
    before = by_groups(query, pool[0], pool[1], groups, masks)
    for side in pool:
        side[[0, 5, 3, 1, 6]] = torch.nan  # the blocks of row 1, and of no row
    after = by_groups(query, pool[0], pool[1], groups, masks)
    others = [number for number, (row, _) in enumerate(numbered) if row != 1]
    assert torch.equal(after[others], before[others])
