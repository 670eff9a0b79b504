"""The pages in which each token of a decoding step finds its row's keys and values."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from inference.accelerator import to_device
from inference.local.kv.block_tables import blocks_for
from inference.local.kv.kv_arrangement import Arrangement
from inference.local.kv.query_groups import token_rows

TILE_TOKENS = 16  # the most tokens of a row that attend together, so that its keys are read once for them. Not tuned


@dataclass(frozen=True, slots=True)
class Pages:
    """A table of the pages of each token's row, in the order of the row's tokens."""

    table: Tensor  # [tokens, most] int32
    sizes: Tensor  # [tokens] int32, the number of tokens in a page, the same for each token
    heads: int  # the key heads of a page
    # [tiles, 2] int32, the first token of each tile and its number of tokens, which are numbered in order and belong to
    # one row; None: each token attends alone
    tiles: Tensor | None = None


class PageKernels(Protocol):
    """What a device computes over pages; see `inference/local/forward/page_kernels.py`."""

    def write(
        self, states: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, pages: Pages, positions: Tensor
    ) -> Tensor:
        """Rotates queries and keys of `states`, and writes keys and values to their pages; returns the queries.

        `states` are [tokens, query heads + 2 key heads, dim], contiguous. `cos`, and `sin` with a rotation's signs,
        have `dim` entries a token. `keys` and `values` are [slots, dim]. A token of a negative position is left out.
        """

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, pages: Pages, positions: Tensor) -> Tensor:
        """Returns the attention, [tokens, heads * dim], of queries [tokens, heads, dim] up to their own positions.

        A token of a negative position gets 0.
        """


def pages_of(arrangement: Arrangement, counts: Sequence[int], max_positions: int) -> Pages:
    """Returns the pages of a pass in which row i has counts[i] tokens, numbered as in `token_rows`.

    The table has the same number of columns for any rows of one cache, so that one graph can read all such tables.
    """
    (of,), device = arrangement.slots, arrangement.device
    held = [arrangement.blocks_of(row) for row in range(len(counts))]
    most, longest = max(map(len, held)), blocks_for(max_positions, arrangement.block_tokens)
    columns = max(most, min(arrangement.most_pages, longest))  # of a small model, a GPU holds 100,000 blocks and more
    table = torch.zeros(len(held), columns, dtype=torch.int32, device=device)
    table[:, :most] = to_device([[*row, *[0] * (most - len(row))] for row in held], device, torch.int32)
    if max(counts) > 1:
        table = table.index_select(0, to_device([row for row, _ in token_rows(counts)], device))
    sizes = torch.full((len(table),), arrangement.block_tokens, dtype=torch.int32, device=device)
    tiles = to_device(tiles_of(counts), device, torch.int32) if max(counts) > 1 else None
    return Pages(table, sizes, of.heads, tiles)


def tiles_of(counts: Sequence[int]) -> list[tuple[int, int]]:
    """Returns the first token and the number of tokens of each tile; a row's first token attends alone."""
    tiles, begin = [(row, 1) for row in range(len(counts))], len(counts)
    for count in counts:
        end = begin + count - 1
        tiles += [(first, min(TILE_TOKENS, end - first)) for first in range(begin, end, TILE_TOKENS)]
        begin = end
    return tiles
