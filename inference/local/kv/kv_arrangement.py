"""How the memory of the KV cache is divided among rows: a rectangle, or several blocks for each row."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from inference.accelerator import copied_to, to_device
from inference.local.kv.block_tables import BlockChanges, BlockTables, blocks_for
from inference.local.kv.kv_budget import COLUMN_STEP, KvLayout, LayerSlots
from inference.local.kv.shared_prefixes import SharedPrefixes


@dataclass(frozen=True, slots=True)
class Piece:
    """Neighbouring rows of a rectangle that attention reads in one call, up to the length of the longest of them."""

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


def enlarged_rectangle(now: "Rectangle", rows: int, columns: int, budget_bytes: int, layout: KvLayout) -> "Rectangle":
    """Returns a rectangle of at least `rows` by `columns` tokens, with space to grow if the budget allows."""
    new_columns, new_rows = now.block_tokens, max(rows, now.blocks)
    if columns > now.block_tokens:
        new_columns = -(-(columns + columns // 4) // COLUMN_STEP) * COLUMN_STEP
    if rows > now.blocks > 0:
        new_rows += rows // 2
    new_columns = min(new_columns, layout.most_tokens or new_columns)
    fitting = bisect_right(range(new_columns + 1), budget_bytes // rows, key=layout.row_bytes) - 1
    new_columns = max(columns, fitting)
    return Rectangle(now.slots, now.device, min(new_rows, budget_bytes // layout.row_bytes(new_columns)), new_columns)


@dataclass(frozen=True)
class Arrangement:
    """The division of tensors [slots, dim] into the blocks of rows; a slot holds one head's key or value of a token."""

    slots: tuple[LayerSlots, ...]  # each LayerSlots that some layer has, once
    device: torch.device
    blocks: int = 0
    block_tokens: int = 0

    @property
    def columns(self) -> int:
        """The number of tokens that fit in the longest row."""
        return self.block_tokens

    @property
    def most_pages(self) -> int:
        """The most blocks that a row can have."""
        return 1

    @property
    def shared_tokens(self) -> int:
        """The tokens that rows share with other rows."""
        return 0

    @property
    def prefixes(self) -> SharedPrefixes | None:
        """The prefixes that rows may share; None if each row has its own memory."""
        return None

    def blocks_of(self, row: int) -> Sequence[int]:
        """Returns the blocks of a row in the order of its tokens."""
        return [row]

    def room(self, row: int) -> int:
        """Returns the number of tokens that fit in a row's memory."""
        return len(self.blocks_of(row)) * self.block_tokens

    def most_tokens(self, most: int) -> int:
        """Returns how many tokens of a row are kept by layers that need `most`, before they overwrite the oldest."""
        return most

    def read_tokens(self, cached: Sequence[int], width: int) -> float:
        """Returns how many cached tokens a step reads for the mean row; the longest row has `width` columns."""
        return width

    def needed_bytes(self, lengths: Sequence[int], shared: Sequence[Sequence[int]], layout: KvLayout) -> int:
        """Returns the fewest bytes for all rows, with these lengths, if joiners share the blocks `shared`."""
        return len(lengths) * layout.row_bytes(max(lengths, default=0))

    def taken_bytes(self, layout: KvLayout) -> int:
        """Returns the bytes that rows take now."""
        return self.blocks * layout.row_bytes(self.block_tokens)

    def rewinds(self, lengths: Sequence[int]) -> bool:
        """Returns whether, in a layer with a window, any row's token number lengths[i] goes to the first column."""
        sizes = {self.columns_of(of) for of in self.slots if of.most_tokens}
        return any(length % size == 1 % size for size in sizes for length in lengths)

    def change(self, tensors: Iterable[tuple[Tensor, LayerSlots]], changes: BlockChanges) -> None:
        """Copies and zeroes blocks of these tensors, each of which comes with the slots of its layer."""
        source, target, zeroed = (
            to_device(blocks, self.device, torch.long) for blocks in (changes.sources, changes.targets, changes.zeroed)
        )
        for tensor, of in tensors:
            blocks = self.by_block(tensor, of)
            if changes.sources:
                blocks.index_copy_(0, target, blocks.index_select(0, source))
            if changes.zeroed:
                blocks.index_fill_(0, zeroed, 0)

    def by_block(self, tensor: Tensor, of: LayerSlots) -> Tensor:
        """Returns the view [blocks, heads, tokens, dim] of a tensor of slots."""
        size = self.columns_of(of)
        held = tensor[: self.blocks * of.heads * size]
        return held.view(self.blocks, of.heads, size, tensor.shape[-1])

    def slots_at(self, positions: Sequence[int], rows: Sequence[int] | None = None) -> dict[LayerSlots, Tensor]:
        """Returns the slots, [tokens * heads], of the tokens at positions[i] of rows[i]; without `rows`, of row i.

        The next token in the same block has slot + 1.
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

        Layers with a window have slots of the last tokens only.
        """
        slots = self._slots_on_host(rows, starts, stops)
        return {of: copied_to(torch.cat(each), self.device) for of, each in slots.items()}

    def _slots_on_host(
        self, rows: Sequence[int], starts: Sequence[int], stops: Sequence[int]
    ) -> dict[LayerSlots, list[Tensor]]:
        """Returns the slots of each row, [heads * tokens]; a device would launch a dozen operations for each row."""
        slots: dict[LayerSlots, list[Tensor]] = {of: [] for of in self.slots}
        for of, each in slots.items():
            heads, size = torch.arange(of.heads)[:, None], self.columns_of(of)
            for row, start, stop in zip(rows, starts, stops, strict=True):
                positions = torch.arange(max(start, stop - (of.most_tokens or stop)), stop)
                blocks = self._blocks_at(row, positions)
                each.append(((blocks * of.heads + heads) * size + positions % size).view(-1))
        return slots

    def token_indices(self, starts: Sequence[int], stops: Sequence[int]) -> dict[LayerSlots, Tensor]:
        """Returns where the tokens of `token_slots` are in states [rows, heads, tokens], padded to the longest row.

        Has no entry for layers that hold all of the states.
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

    def slots_before(self, rows: Sequence[int], positions: Sequence[int]) -> dict[LayerSlots, Tensor]:
        """Returns the slots [rows, heads, n] of the tokens in front of positions[i] of rows[i].

        A row is padded with its last slot. Layers with a window have slots of the last tokens only.
        """
        slots = {}
        for of, each in self._slots_on_host(rows, [0] * len(rows), [max(1, at) for at in positions]).items():
            own = [slots_of_row.view(of.heads, -1) for slots_of_row in each]
            most = max(part.shape[1] for part in own)
            padded = [torch.cat([part, part[:, -1:].expand(-1, most - part.shape[1])], 1) for part in own]
            slots[of] = copied_to(torch.stack(padded), self.device)
        return slots

    def columns_of(self, of: LayerSlots) -> int:
        """Returns the number of tokens in a block of these layers."""
        return self.block_tokens

    def _block_of(self, row: int, position: int) -> int:
        return row

    def _blocks_at(self, row: int, positions: Tensor) -> Tensor | int:
        return row


class Rectangle(Arrangement):
    """Row i has block i, which is as wide as the longest row needs."""

    def columns_of(self, of: LayerSlots) -> int:
        """Returns the number of columns, which in layers with a window is at most the window's."""
        return self.block_tokens if of.most_tokens is None else min(self.block_tokens, of.most_tokens)


@dataclass(frozen=True)
class BlockRows(Arrangement):
    """Each row has the blocks that its tokens need, and shares those of its prefix with others."""

    tables: BlockTables = field(kw_only=True)

    @property
    def columns(self) -> int:
        """The number of tokens that fit in the longest row."""
        return self.tables.columns

    @property
    def most_pages(self) -> int:
        """The number of all blocks."""
        return self.blocks

    @property
    def shared_tokens(self) -> int:
        """The tokens that rows share with other rows."""
        return self.tables.shared_tokens

    @property
    def prefixes(self) -> SharedPrefixes:
        """The prefixes that rows may share."""
        return self.tables.prefixes

    def blocks_of(self, row: int) -> Sequence[int]:
        """Returns the blocks of a row in the order of its tokens."""
        return self.tables.rows[row]

    def most_tokens(self, most: int) -> int:
        """Returns the number of tokens in the whole blocks that hold `most` tokens."""
        return blocks_for(most, self.block_tokens) * self.block_tokens

    def read_tokens(self, cached: Sequence[int], width: int) -> float:
        """Returns the mean number of cached tokens of a row."""
        return sum(cached) / len(cached)

    def needed_bytes(self, lengths: Sequence[int], shared: Sequence[Sequence[int]], layout: KvLayout) -> int:
        """Returns the bytes of the blocks that all rows need."""
        return self.tables.needed_tokens(lengths, shared) * layout.token_bytes

    def taken_bytes(self, layout: KvLayout) -> int:
        """Returns the bytes of all blocks in use."""
        return self.tables.taken * self.block_tokens * layout.token_bytes

    def _block_of(self, row: int, position: int) -> int:
        return self.tables.block_of(row, position)

    def _blocks_at(self, row: int, positions: Tensor) -> Tensor | int:
        held = torch.tensor(self.tables.rows[row], dtype=torch.long)
        return held[positions // self.block_tokens % self.tables.most_blocks]
