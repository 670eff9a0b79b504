"""How the tokens of a pass are divided for attention."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.local.kv.block_tables import BlockTables
from inference.local.kv.query_groups import COPY_QUERIES, alike, query_groups, token_rows

CPU = torch.device("cpu")


@settings(deadline=None, derandomize=True)
@given(
    rows=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5)), min_size=1, max_size=6),
    shared=st.integers(0, 3),
    call_products=st.integers(0, 40),
    seed=st.integers(0, 9),
)
def test_each_token_has_a_place_of_its_own_row(rows, shared, call_products, seed):
    counts, blocks = [count for count, _ in rows], [held for _, held in rows]
    tables = BlockTables(blocks=40, block_tokens=4)
    order = torch.randperm(33, generator=torch.Generator().manual_seed(seed)).tolist()
    prefix = [order.pop() for _ in range(shared)]
    tables.rows = [[*prefix, *(order.pop() for _ in range(held))] for held in blocks]
    numbered = token_rows(counts)
    assert numbered[: len(counts)] == [(row, 0) for row in range(len(counts))]
    divided = query_groups(tables, counts, CPU, call_products)
    tokens = torch.cat([group.tokens for group in divided.groups]).tolist()
    places = [*range(len(counts))] if divided.places is None else divided.places.tolist()
    assert [tokens[place] for place in places] == [*range(len(numbered))]
    of_groups = alike([*zip(counts, map(len, tables.rows), strict=True)], call_products)
    for group, of_rows in zip(divided.groups, of_groups, strict=True):
        assert group.queries == max(counts[row] for row in of_rows)
        for place, token in enumerate(group.tokens.tolist()):
            assert numbered[token][0] == of_rows[place // group.queries]
        held = [block for row in of_rows for block in tables.rows[row]]
        if group.blocks is not None:
            assert sorted(group.blocks.tolist()) == sorted(set(held))
            assert group.index.blocks == len(set(held))
        assert group.columns == 4 * max(len(tables.rows[row]) for row in of_rows)
        assert len(group.index.by_row) == len(held)


@settings(deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=9),
    most_padding=st.integers(0, 90),
)
def test_each_row_is_in_one_group_whose_padding_is_bounded(sizes, most_padding):
    groups = alike(sizes, most_padding)
    assert sorted(row for group in groups for row in group) == [*range(len(sizes))]
    for group in groups:
        tokens, blocks = (max(sizes[row][side] for row in group) for side in (0, 1))
        assert sum(tokens * blocks - sizes[row][0] * sizes[row][1] for row in group) <= most_padding


def test_rows_that_differ_in_tokens_or_in_blocks_attend_apart_where_padding_costs_more():
    assert alike([(1, 5), (1, 6), (1, 5)], 3) == [[0, 1, 2]]
    assert alike([(1, 5), (1, 160), (1, 6)], 90) == [[0, 2], [1]]
    assert alike([(9, 5), (1, 5), (8, 5), (1, 6)], 30) == [[1, 3], [2, 0]]


def test_few_rows_with_many_tokens_get_their_blocks_copied_and_rows_with_few_are_read_in_place():
    tables = BlockTables(blocks=20, block_tokens=4)
    tables.rows = [[n] for n in range(9)] + [[9]]
    several = [1] * 9 + [COPY_QUERIES]
    apart = query_groups(tables, several, CPU, 0).groups
    assert [group.blocks is None for group in apart] == [True, False]
    assert [group.index.blocks for group in apart] == [9, 1]
    assert [group.blocks is None for group in query_groups(tables, [2] * 5 + [1] * 5, CPU, 0).groups] == [True, True]
