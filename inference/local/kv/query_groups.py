"""Groups the rows of a pass over blocks, so that rows of similar numbers of tokens and blocks attend in one call.

Within a call each row is padded to the most tokens, and to the most blocks, of any row in it. So a group has rows of
like numbers, as far as the padding costs less than another call. A block is multiplied by all queries of its row at
once. A group reads the cache in place, which includes blocks of other rows up to its own last block; it copies its own
blocks if that costs less.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import torch
from torch import Tensor

from inference.accelerator import to_device
from inference.local.kv.block_tables import BlockIndex, BlockTables, index_of_blocks

# One more call costs as much as this many products of a query with a block.
CALL_PRODUCTS = 150
# A block is multiplied by this many queries in the time that copying it takes.
COPY_QUERIES = 6


@dataclass(frozen=True, slots=True)
class QueryGroup:
    """Rows whose tokens attend in one call; a token's place is row in the group * `queries` + number in the row."""

    tokens: Tensor  # [rows * queries] the token at each place; unused places of a row repeat its last token
    queries: int
    columns: int  # the columns of the group's longest row
    blocks: Tensor | None  # the blocks to copy, which `index` numbers from 0; None: they are read in place
    index: BlockIndex


@dataclass(frozen=True, slots=True)
class QueryGroups:
    """All groups of a pass."""

    groups: Sequence[QueryGroup]
    places: Tensor | None  # [tokens] each token's place among those of all groups; None: one group, one token a row

    def masks(self, mask: Tensor, shared: int) -> list[Tensor]:
        """Returns each group's part of a pass's mask, [rows, 1, 1 or queries of a key head, columns].

        The mask is [tokens, 1, 1, columns]; `shared` query heads share a key head.
        """
        if self.places is None:
            return [mask]
        parts = [mask[..., : group.columns].index_select(0, group.tokens) for group in self.groups]
        by_row = [part.view(-1, 1, each.queries, each.columns) for part, each in zip(parts, self.groups, strict=True)]
        return [part if part.shape[2] == 1 else part.repeat_interleave(shared, 2) for part in by_row]


def token_rows(counts: Sequence[int]) -> list[tuple[int, int]]:
    """Returns the row of each token of a pass, and its place among the tokens of its row; row i has counts[i].

    All rows' first tokens come first, then the others of row 0, of row 1, ...
    """
    first = [(row, 0) for row in range(len(counts))]
    return first + [(row, place) for row, count in enumerate(counts) for place in range(1, count)]


def query_groups(
    tables: BlockTables, counts: Sequence[int], device: torch.device, call_products: int = CALL_PRODUCTS
) -> QueryGroups:
    """Divides the tokens of a pass into groups; row i has counts[i] tokens, numbered as in `token_rows`."""
    divided = alike([*zip(counts, map(len, tables.rows), strict=True)], call_products)
    # the number of each row's second token, less 1
    seconds = [*accumulate((count - 1 for count in counts), initial=len(counts) - 1)]
    groups, places, taken = list[QueryGroup](), [0] * sum(counts), 0
    for rows in divided:
        queries, tokens = max(counts[row] for row in rows), list[int]()
        for row in rows:
            own = [row, *range(seconds[row] + 1, seconds[row] + counts[row])]
            for place, token in enumerate(own, taken + len(tokens)):
                places[token] = place
            tokens += own + own[-1:] * (queries - len(own))
        taken += len(tokens)
        groups.append(_group(tables, rows, tokens, queries, device))
    as_rows = len(groups) == 1 and max(counts) == 1
    return QueryGroups(groups, None if as_rows else to_device(places, device))


def alike(sizes: Sequence[tuple[int, int]], most_padding: int) -> list[list[int]]:
    """Returns groups of rows, from the fewest tokens up; `sizes` has the numbers of tokens and blocks of each row.

    A group is padded by at most `most_padding` products.
    """
    groups: list[list[int]] = []
    needed = 0  # products that the last group's rows need
    most = 0, 0  # the most tokens and the most blocks of any row in the last group
    for row in sorted(range(len(sizes)), key=sizes.__getitem__):
        tokens, blocks = sizes[row]
        longest = max(most[0], tokens), max(most[1], blocks)
        padded = (len(groups[-1]) + 1) * longest[0] * longest[1] if groups else 0
        if groups and padded - needed - tokens * blocks <= most_padding:
            groups[-1].append(row)
            needed, most = needed + tokens * blocks, longest
        else:
            groups.append([row])
            needed, most = tokens * blocks, (tokens, blocks)
    return groups if len(groups) > 1 else [sorted(groups[0])]


def _group(
    tables: BlockTables, rows: Sequence[int], tokens: Sequence[int], queries: int, device: torch.device
) -> QueryGroup:
    held = [tables.rows[row] for row in rows]
    own, columns = dict.fromkeys(chain.from_iterable(held)), max(map(len, held)) * tables.block_tokens
    copied: Tensor | None = None
    if queries * (max(own) + 1 - len(own)) > COPY_QUERIES * len(own):
        renumbered = {block: number for number, block in enumerate(own)}
        held, copied = [[renumbered[block] for block in of_row] for of_row in held], to_device([*own], device)
    return QueryGroup(to_device(tokens, device), queries, columns, copied, index_of_blocks(held, device))
