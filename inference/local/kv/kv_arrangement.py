"""How the memory of the KV cache is divided among rows: a rectangle, or several blocks for each row."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from inference.accelerator import copied_to, to_device
from inference.local.kv.block_tables import BlockChanges, BlockTables, blocks_for
from inference.local.kv.kv_budget import COLUMN_STEP, KvLayout, LayerSlots


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


def enlarged_rectangle(
    now: "Arrangement", rows: int, columns: int, budget_bytes: int, layout: KvLayout
) -> "Arrangement":
    """Returns a rectangle of at least `rows` by `columns` tokens, with space to grow if the budget allows."""
    new_columns, new_rows = now.block_tokens, max(rows, now.blocks)
    if columns > now.block_tokens:
        new_columns = -(-(columns + columns // 4) // COLUMN_STEP) * COLUMN_STEP
    if rows > now.blocks > 0:
        new_rows += rows // 2
    new_columns = min(new_columns, layout.most_tokens or new_columns)
    fitting = bisect_right(range(new_columns + 1), budget_bytes // rows, key=layout.row_bytes) - 1
    new_columns = max(columns, fitting)
    return Arrangement(now.slots, now.device, min(new_rows, budget_bytes // layout.row_bytes(new_columns)), new_columns)


@dataclass(frozen=True, slots=True)
class Arrangement:
    """The division of tensors [slots, dim] into the blocks of rows; a slot holds one head's key or value of a token.

    A layer that holds n tokens of a row has its token p where it had token p - n, p - 2n, ...
    """

    slots: tuple[LayerSlots, ...]  # the different ones of all layers
    device: torch.device
    blocks: int = 0
    block_tokens: int = 0
    tables: BlockTables | None = None  # None: a rectangle, row i has block i

    @property
    def columns(self) -> int:
        """The number of tokens that fit in each row of a rectangle, or in the longest row of blocks."""
        return self.block_tokens if self.tables is None else self.tables.columns

    def most_tokens(self, most: int) -> int:
        """Returns after how many tokens, in whole blocks, layers that need `most` of a row overwrite the oldest."""
        return most if self.tables is None else blocks_for(most, self.block_tokens) * self.block_tokens

    def rewinds(self, lengths: Sequence[int]) -> bool:
        """Returns whether the last of lengths[i] tokens of any row begins a block of a layer with a window."""
        sizes = {self.columns_of(of) for of in self.slots if of.most_tokens}
        return any(length % size == 1 % size for size in sizes for length in lengths)

    def change(self, tensors: Iterable[tuple[Tensor, LayerSlots]], changes: BlockChanges) -> None:
        """Copies and zeroes blocks of tensors, each with its slots."""
        source, target, zeroed = (
            to_device(blocks, self.device, torch.long) for blocks in (changes.sources, changes.targets, changes.zeroed)
        )
        for tensor, of in tensors:
            blocks = self.by_block(tensor, of)
            if changes.sources:
                blocks.index_copy_(0, target, blocks.index_select(0, source))
            if changes.zeroed:
                blocks.index_fill_(0, zeroed, 0)

    def gathered(self, tensor: Tensor, of: LayerSlots, blocks: Tensor) -> Tensor:
        """Returns a copy [rows, heads, n * block tokens, dim] of blocks [rows, n] of a tensor of slots."""
        held = self.by_block(tensor, of).index_select(0, blocks.view(-1))
        return held.view(*blocks.shape, of.heads, -1, tensor.shape[-1]).transpose(1, 2).flatten(2, 3)

    def by_block(self, tensor: Tensor, of: LayerSlots) -> Tensor:
        """Returns the view [blocks, heads, tokens, dim] of a tensor of slots."""
        size = self.columns_of(of)
        held = tensor[: self.blocks * of.heads * size]
        return held.view(self.blocks, of.heads, size, tensor.shape[-1])

    def slots_at(self, positions: Sequence[int], rows: Sequence[int] | None = None) -> dict[LayerSlots, Tensor]:
        """Returns the slots, [tokens * heads], of tokens at these positions of rows[i], or of row i.

        A block's next token has slot + 1.
        """
        slots = {}
        of_rows = range(len(positions)) if rows is None else rows
        blocks = [self._block_of(row, at) for row, at in zip(of_rows, positions, strict=True)]
        for of in self.slots:
            count, size = of.heads, self.columns_of(of)
            places = [block * count * size + at % size for block, at in zip(blocks, positions, strict=True)]
            first = to_device(places, self.device)
            slots[of] = (first[:, None] + torch.arange(count, device=self.device) * size).view(-1)
        return slots

    def token_slots(self, rows: Sequence[int], starts: Sequence[int], stops: Sequence[int]) -> dict[LayerSlots, Tensor]:
        """Returns the slots of the tokens from starts[i] to stops[i] of rows[i], by rows, then heads.

        Layers with a window have the last ones only.
        """
        slots, ranges = {}, [*zip(rows, starts, stops, strict=True)]
        for of in self.slots:
            heads, size, each = torch.arange(of.heads, device=self.device)[:, None], self.columns_of(of), list[Tensor]()
            for row, start, stop in ranges:
                positions = torch.arange(max(start, stop - (of.most_tokens or stop)), stop, device=self.device)
                blocks = self._blocks_at(row, positions)
                each.append(((blocks * of.heads + heads) * size + positions % size).view(-1))
            slots[of] = torch.cat(each)
        return slots

    def token_indices(self, starts: Sequence[int], stops: Sequence[int]) -> dict[LayerSlots, Tensor]:
        """Returns where those tokens are in states [rows, heads, tokens], which are padded to the longest.

        Returns nothing for layers that hold all of the states.
        """
        counts = [stop - start for start, stop in zip(starts, stops, strict=True)]
        padded, indices = min(counts) < max(counts), {}
        for of in self.slots:
            most = of.most_tokens or max(counts)
            if padded or most < max(counts):
                columns, ends = torch.arange(max(counts)), torch.tensor(counts)[:, None]  # on the host: no wait
                is_token = ((columns < ends) & (columns >= ends - most))[:, None]
                indices[of] = copied_to(is_token.expand(-1, of.heads, -1).reshape(-1).nonzero().view(-1), self.device)
        return indices

    def blocks_before(self, rows: Sequence[int], positions: Sequence[int]) -> Tensor:
        """Returns the blocks [rows, n] in front of positions[i] of rows[i], padded with any block."""
        counts = [position // self.block_tokens for position in positions]
        blocks = [[self._block_of(row, 0)] * max(counts) for row in rows]
        for row, count, padded in zip(rows, counts, blocks, strict=True):
            padded[:count] = [self._block_of(row, n * self.block_tokens) for n in range(count)]
        return to_device(blocks, self.device)

    def columns_of(self, of: LayerSlots) -> int:
        """Returns the tokens of a block: in a rectangle, layers with a window have no more columns than it has."""
        if self.tables is not None or of.most_tokens is None:
            return self.block_tokens
        return min(self.block_tokens, of.most_tokens)

    def _block_of(self, row: int, position: int) -> int:
        return row if self.tables is None else self.tables.block_of(row, position)

    def _blocks_at(self, row: int, positions: Tensor) -> Tensor | int:
        if self.tables is None:
            return row
        held = to_device(self.tables.rows[row], self.device, torch.long)
        return held[positions // self.block_tokens % self.tables.most_blocks]
