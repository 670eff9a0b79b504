"""How the tokens of a pass are divided for attention."""

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from inference.local.kv.block_tables import BlockTables
from inference.local.kv.query_groups import query_groups, token_rows

CPU = torch.device("cpu")


@settings(deadline=None, derandomize=True)
@given(rows=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5)), min_size=1, max_size=6), seed=st.integers(0, 9))
def test_each_token_has_a_place_of_its_own_row(rows, seed):
    counts, blocks = [count for count, _ in rows], [held for _, held in rows]
    assume(max(counts) > 1)
    tables = BlockTables(blocks=40, block_tokens=4)
    order = torch.randperm(30, generator=torch.Generator().manual_seed(seed)).tolist()
    tables.rows = [[order.pop() for _ in range(held)] for held in blocks]
    numbered = token_rows(counts)
    assert numbered[: len(counts)] == [(row, 0) for row in range(len(counts))]
    groups = query_groups(tables, tables.index(CPU), counts)
    found = []
    for group in groups:
        of_rows = [
            row for row in range(len(counts)) if group is groups[0] or counts[row] > 1
        ]  # the second group has the rows with several tokens
        for place in group.places.tolist():
            row, place_of_row = numbered[group.tokens[place]]
            assert row == of_rows[place // group.queries]
            found.append((row, place_of_row))
        for place, token in enumerate(group.tokens.tolist()):
            assert numbered[token][0] == of_rows[place // group.queries]
        if group.blocks is not None:
            assert group.blocks.tolist() == [block for row in of_rows for block in tables.rows[row]]
            assert group.columns == 4 * max(blocks[row] for row in of_rows)
    assert found == numbered


def test_few_rows_with_several_tokens_get_their_blocks_copied_and_most_rows_do_not():
    tables = BlockTables(blocks=10, block_tokens=4)
    tables.rows = [[0], [1, 4], [2, 3]]
    index = tables.index(CPU)
    assert [group.blocks is None for group in query_groups(tables, index, [1, 3, 1])] == [True, False]
    assert [group.blocks is None for group in query_groups(tables, index, [1, 3, 2])] == [True]
