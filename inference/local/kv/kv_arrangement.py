"""How the memory of the KV cache is divided among rows: a rectangle, or several blocks for each row."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate, chain, repeat

import torch
from torch import Tensor

from inference.local.kv.kv_budget import COLUMN_STEP


@dataclass(frozen=True, slots=True)
class Piece:
    """Neighbouring rows of a rectangle that attention reads in one call, up to the length of the longest row."""

    start: int
    stop: int
    width: int


def split_into_pieces(lengths: Sequence[int], most_hidden: float) -> list[Piece]:
    """Divides the rows into pieces, each of which reads at most `most_hidden` masked tokens or has one row."""
    pieces, hidden = [Piece(0, 1, lengths[0])], 0
    for row, length in enumerate(lengths[1:], 1):
        last = pieces[-1]
        width = max(last.width, length)
        hidden += (row - last.start) * (width - last.width) + width - length
        if hidden <= most_hidden:
            pieces[-1] = Piece(last.start, row + 1, width)
        else:
            pieces.append(Piece(row, row + 1, length))
            hidden = 0
    return pieces


def enlarged_rectangle(now: "Arrangement", rows: int, columns: int, budget_tokens: int) -> "Arrangement":
    """Returns a rectangle of at least `rows` by `columns` tokens, within the budget.

    Where the budget allows, it gets a quarter more columns and half as many rows again, so that the next growth comes
    later.
    """
    new_columns, new_rows = now.block_tokens, max(rows, now.blocks)
    if columns > now.block_tokens:
        new_columns = -(-(columns + columns // 4) // COLUMN_STEP) * COLUMN_STEP
    if rows > now.blocks > 0:
        new_rows += rows // 2
    new_columns = max(columns, min(new_columns, budget_tokens // rows))
    return Arrangement(now.head_counts, now.device, min(new_rows, budget_tokens // new_columns), new_columns)


@dataclass(frozen=True, slots=True)
class BlockIndex:
    """Index tensors with which attention gathers rows into blocks, and blocks into rows.

    A place is one block of one row: row * `most` + number of the block in the row, where `most` is the largest number
    of blocks that a row has.
    """

    block_at: Tensor  # [rows * most] the block at each place; the row's first block at places behind its last one
    place_of: Tensor  # [blocks] the place of each block; 0 if it is free
    row_of: Tensor  # [blocks] the row of each block; 0 if it is free
    by_row: Tensor  # [blocks that are not free] the blocks of row 0, then of row 1, ...
    starts: Tensor  # [rows] where each row begins in `by_row`


def blocks_for(tokens: int, block_tokens: int) -> int:
    """Returns the number of blocks that hold `tokens` tokens of one row."""
    return -(-tokens // block_tokens)


class BlockTables:
    """The blocks of each row in the order of its tokens.

    Attention reads all blocks up to the last one in use. So the lowest free block is taken first, and after many rows
    have left, `close_gaps` moves the last blocks into the gaps.
    """

    def __init__(self, blocks: int, block_tokens: int) -> None:
        self.blocks, self.block_tokens = blocks, block_tokens
        self.rows: list[list[int]] = []
        self._free = list(range(blocks))  # a heap

    @property
    def taken(self) -> int:
        """The number of blocks in use."""
        return self.blocks - len(self._free)

    @property
    def columns(self) -> int:
        """The number of tokens that fit in the blocks of the longest row."""
        return max(map(len, self.rows), default=0) * self.block_tokens

    def grow(self, lengths: Sequence[int]) -> bool | None:
        """Gives row i blocks for lengths[i] tokens; returns whether it took any, or None if too few are free."""
        wanted = [blocks_for(tokens, self.block_tokens) for tokens in lengths]
        missing = [max(0, want - len(row)) for want, row in zip(wanted, chain(self.rows, repeat([])), strict=False)]
        if sum(missing) > len(self._free):
            return None
        self.rows += [[] for _ in range(len(lengths) - len(self.rows))]
        for row, count in zip(self.rows, missing, strict=False):
            row += [heappop(self._free) for _ in range(count)]
        return any(missing)

    def clear(self, row: int) -> list[int]:
        """Frees and returns the blocks of a row, which keeps its index."""
        blocks, self.rows[row] = self.rows[row], []
        for block in blocks:
            heappush(self._free, block)
        return blocks

    def close_gaps(self) -> tuple[list[int], list[int]]:
        """Moves the last blocks into gaps once a third of the blocks up to the last one in use are free.

        Returns the numbers of the moved blocks, old and new; the caller copies their contents.
        """
        end, taken = 1 + max((max(row) for row in self.rows if row), default=-1), self.taken
        if 2 * end <= 3 * taken:
            return [], []
        gaps = [heappop(self._free) for _ in range(bisect_left(sorted(self._free), taken))]
        moved = [block for row in self.rows for block in row if block >= taken]
        place_of = dict(zip(moved, gaps, strict=True))
        self.rows = [[place_of.get(block, block) for block in row] for row in self.rows]
        for block in moved:
            heappush(self._free, block)
        return moved, gaps

    def index(self, device: torch.device) -> BlockIndex:
        """Returns the index tensors for attention; every row must have a block."""
        counts = [len(row) for row in self.rows]
        most = max(counts)
        starts = torch.tensor([0, *accumulate(counts[:-1])], device=device)
        by_row = torch.tensor([*chain.from_iterable(self.rows)], device=device)
        places = torch.tensor([row * most + n for row, count in enumerate(counts) for n in range(count)], device=device)
        block_at = by_row[starts].repeat_interleave(most)
        block_at[places] = by_row
        place_of = torch.zeros(max(map(max, self.rows)) + 1, dtype=torch.long, device=device)
        place_of[by_row] = places
        return BlockIndex(block_at, place_of, place_of // most, by_row, starts)


@dataclass(frozen=True, slots=True)
class Arrangement:
    """The division of tensors [slots, dim] into the blocks of rows; a slot holds one head's key or value of a token.

    Layers may differ in their number of heads, and so in their slots.
    """

    head_counts: tuple[int, ...]
    device: torch.device
    blocks: int = 0
    block_tokens: int = 0
    tables: BlockTables | None = None  # None: a rectangle, row i has block i

    @property
    def columns(self) -> int:
        """The number of tokens that fit in each row of a rectangle, or in the longest row of blocks."""
        return self.block_tokens if self.tables is None else self.tables.columns

    @property
    def taken_tokens(self) -> int:
        """The number of tokens that fit in all blocks in use."""
        return self.block_tokens * (self.blocks if self.tables is None else self.tables.taken)

    def by_block(self, tensor: Tensor, heads: int) -> Tensor:
        """Returns the view [blocks, heads, block tokens, dim] of a tensor of slots."""
        held = tensor[: self.blocks * heads * self.block_tokens]
        return held.view(self.blocks, heads, self.block_tokens, tensor.shape[-1])

    def slots_at(self, positions: Sequence[int]) -> dict[int, Tensor]:
        """Returns by head count the slots, [rows * heads], of row i's token at positions[i].

        A block's next token has slot + 1.
        """
        size, slots = self.block_tokens, {}
        places = [(self._block_of(row, at), at % size) for row, at in enumerate(positions)]
        for count in self.head_counts:
            first = torch.tensor([block * count * size + column for block, column in places], device=self.device)
            slots[count] = (first[:, None] + torch.arange(count, device=self.device) * size).view(-1)
        return slots

    def prefix_slots(self, rows: Sequence[int], lengths: Sequence[int]) -> dict[int, Tensor]:
        """Returns by head count the slots of the first lengths[i] tokens of rows[i], by rows, then heads."""
        size, places = self.block_tokens, []
        for row, length in zip(rows, lengths, strict=True):
            columns = torch.arange(length, device=self.device)
            blocks = torch.tensor(
                [self._block_of(row, column) for column in range(0, length, size)], device=self.device
            )
            places.append((blocks[columns // size] if length else columns, columns % size))
        slots = {}
        for count in self.head_counts:
            heads = torch.arange(count, device=self.device)[:, None]
            slots[count] = torch.cat([((blocks * count + heads) * size + at).view(-1) for blocks, at in places])
        return slots

    def _block_of(self, row: int, position: int) -> int:
        return row if self.tables is None else self.tables.rows[row][position // self.block_tokens]
