"""Which tokens of a pass attend together, where rows have several: a block is multiplied by all queries of its row.

A pass numbers its tokens so that all rows' first tokens come first, then the others of row 0, of row 1, ... If most
blocks belong to rows with several tokens, all tokens are one group, in which rows of fewer are padded. Otherwise the
first tokens are one group, and the others another one, for which the blocks of their rows are copied: that costs less
than to multiply all blocks by as many queries.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import torch
from torch import Tensor

from inference.local.kv.block_tables import BlockIndex, BlockTables, index_of_blocks

# The share of blocks from which on those of rows with several tokens are read in place. Not tuned.
IN_PLACE_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class QueryGroup:
    """Tokens of a pass that attend in one call; a place is row of the group * `queries` + query."""

    tokens: Tensor  # [rows * queries] the token at each place; the row's last one at places that it does not need
    places: Tensor  # [tokens of the group] the place of each token
    queries: int
    columns: int  # that its longest row has
    blocks: Tensor | None  # the blocks to copy, which `index` numbers from 0; None: all blocks in place
    index: BlockIndex


def token_rows(counts: Sequence[int]) -> list[tuple[int, int]]:
    """Returns the row of each token of a pass, and its place among the tokens of its row; row i has counts[i]."""
    first = [(row, 0) for row in range(len(counts))]
    return first + [(row, place) for row, count in enumerate(counts) for place in range(1, count)]


def query_groups(tables: BlockTables, whole: BlockIndex, counts: Sequence[int]) -> list[QueryGroup]:
    """Divides the tokens of a pass in which row i has counts[i], and some row several; `whole` indexes all rows."""
    rows, device, size = range(len(counts)), whole.block_at.device, tables.block_tokens
    several = [row for row in rows if counts[row] > 1]
    held = [tables.rows[row] for row in several]
    if sum(map(len, held)) > IN_PLACE_SHARE * sum(map(len, tables.rows)):
        return [QueryGroup(*_places(rows, 0, counts, device), tables.columns, None, whole)]
    ends = [*accumulate(map(len, held))]
    renumbered = [range(end - len(blocks), end) for end, blocks in zip(ends, held, strict=True)]
    copied, columns = torch.tensor([*chain.from_iterable(held)], device=device), max(map(len, held)) * size
    return [
        QueryGroup(*_places(rows, 0, [1] * len(counts), device), tables.columns, None, whole),
        QueryGroup(*_places(several, 1, counts, device), columns, copied, index_of_blocks(renumbered, device)),
    ]


def _places(rows: Sequence[int], first: int, counts: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor, int]:
    """Returns `tokens`, `places` and `queries` for the tokens of these rows from their place `first` on."""
    queries = max(counts[row] for row in rows) - first
    # the number of each row's token at place 1, less 1
    seconds = [*accumulate((count - 1 for count in counts), initial=len(counts) - 1)]
    tokens: list[int] = []
    place_of: dict[int, int] = {}
    for row in rows:
        for place in range(first, first + queries):
            own = min(place, counts[row] - 1)
            number = seconds[row] + own if own else row
            place_of.setdefault(number, len(tokens))
            tokens.append(number)
    places = [place_of[number] for number in sorted(place_of)]
    return torch.tensor(tokens, device=device), torch.tensor(places, device=device), queries
