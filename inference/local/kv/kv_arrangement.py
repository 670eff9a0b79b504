"""How the memory of the KV cache is divided among rows: a rectangle, or several blocks for each row."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from inference.local.kv.block_tables import BlockChanges, BlockTables
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

    def change(self, tensors: Iterable[tuple[Tensor, int]], changes: BlockChanges) -> None:
        """Copies and zeroes blocks of tensors of slots, each with its number of heads."""
        source, target, zeroed = (
            torch.tensor(blocks, dtype=torch.long, device=self.device)
            for blocks in (changes.sources, changes.targets, changes.zeroed)
        )
        for tensor, heads in tensors:
            blocks = self.by_block(tensor, heads)
            if changes.sources:
                blocks.index_copy_(0, target, blocks.index_select(0, source))
            if changes.zeroed:
                blocks.index_fill_(0, zeroed, 0)

    def gathered(self, tensor: Tensor, heads: int, blocks: Tensor) -> Tensor:
        """Returns a copy [rows, heads, n * block tokens, dim] of blocks [rows, n] of a tensor of slots."""
        held = (
            self.by_block(tensor, heads)
            .index_select(0, blocks.view(-1))
            .view(*blocks.shape, heads, -1, tensor.shape[-1])
        )
        return held.transpose(1, 2).flatten(2, 3)

    def by_block(self, tensor: Tensor, heads: int) -> Tensor:
        """Returns the view [blocks, heads, block tokens, dim] of a tensor of slots."""
        held = tensor[: self.blocks * heads * self.block_tokens]
        return held.view(self.blocks, heads, self.block_tokens, tensor.shape[-1])

    def slots_at(self, positions: Sequence[int], rows: Sequence[int] | None = None) -> dict[int, Tensor]:
        """Returns by head count the slots, [tokens * heads], of tokens at these positions of rows[i], or of row i.

        A block's next token has slot + 1.
        """
        size, slots = self.block_tokens, {}
        of_rows = range(len(positions)) if rows is None else rows
        places = [(self._block_of(row, at), at % size) for row, at in zip(of_rows, positions, strict=True)]
        for count in self.head_counts:
            first = torch.tensor([block * count * size + column for block, column in places], device=self.device)
            slots[count] = (first[:, None] + torch.arange(count, device=self.device) * size).view(-1)
        return slots

    def token_slots(self, rows: Sequence[int], starts: Sequence[int], stops: Sequence[int]) -> dict[int, Tensor]:
        """Returns by head count the slots of the tokens from starts[i] to stops[i] of rows[i], by rows, then heads.

        Each start is the beginning of a block.
        """
        size, places = self.block_tokens, []
        for row, start, stop in zip(rows, starts, stops, strict=True):
            columns = torch.arange(stop - start, device=self.device)
            blocks = torch.tensor([self._block_of(row, at) for at in range(start, stop, size)], device=self.device)
            places.append((blocks[columns // size] if stop > start else columns, columns % size))
        slots = {}
        for count in self.head_counts:
            heads = torch.arange(count, device=self.device)[:, None]
            slots[count] = torch.cat([((blocks * count + heads) * size + at).view(-1) for blocks, at in places])
        return slots

    def token_indices(self, starts: Sequence[int], stops: Sequence[int]) -> dict[int, Tensor]:
        """Returns by head count where the tokens are in states [rows, heads, tokens], which are padded to the longest.

        Returns nothing if none is padded.
        """
        counts = [stop - start for start, stop in zip(starts, stops, strict=True)]
        if min(counts) == max(counts):
            return {}
        columns = torch.arange(max(counts), device=self.device)
        is_token = (columns < torch.tensor(counts, device=self.device)[:, None])[:, None]
        return {heads: is_token.expand(-1, heads, -1).reshape(-1).nonzero().view(-1) for heads in self.head_counts}

    def blocks_before(self, rows: Sequence[int], positions: Sequence[int]) -> Tensor:
        """Returns the blocks [rows, n] in front of positions[i] of rows[i], padded with any block."""
        counts = [position // self.block_tokens for position in positions]
        blocks = [[self._block_of(row, 0)] * max(counts) for row in rows]
        for row, count, padded in zip(rows, counts, blocks, strict=True):
            padded[:count] = [self._block_of(row, n * self.block_tokens) for n in range(count)]
        return torch.tensor(blocks, device=self.device)

    def _block_of(self, row: int, position: int) -> int:
        return row if self.tables is None else self.tables.rows[row][position // self.block_tokens]
