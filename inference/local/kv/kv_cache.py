"""The KV cache: memory of the whole budget, allocated once and written in place, as a rectangle or in blocks.

Each layer has one tensor for keys and one for values. Their beginnings are [blocks, heads, block tokens, dim]. The
column of a token is its position in the sequence, independent of other rows. So a row that joins moves no other row and
needs no padding on the left. The mask hides the columns behind the last token of a row.

In a rectangle each row has one block, which is as wide as the longest row needs. Growing it moves all rows, so it grows
in steps. Static batches use it because the papers count memory in this way. Models without a `FusedModel` use it, too,
and so do models with a window in some layers only; these layers then have only the window's columns.
In blocks of BLOCK_TOKENS each row has only the blocks that its own tokens need, and growing moves no row. Rows may
share the blocks of a common prefix, which stay after their last row until a row needs the memory.

Memory that no row or kept prefix uses is zero: attention multiplies hidden columns by 0, and 0 times NaN is NaN.

More than 300 lines, because rectangle and blocks are two forms of one memory.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from math import inf
from typing import Any

import torch
from torch import Tensor

from inference.local.kv.attention_windows import in_turns
from inference.local.kv.block_tables import BlockChanges, BlockTables
from inference.local.kv.kv_arrangement import (
    Arrangement,
    BlockRows,
    Piece,
    Rectangle,
    enlarged_rectangle,
    split_into_pieces,
)
from inference.local.kv.kv_budget import KvLayout, LayerSlots, zeroed_memory
from inference.local.kv.pages import Pages, pages_of
from inference.local.kv.query_groups import QueryGroups, query_groups
from inference.local.kv.row_states import RowStates

# The width that attention reads is rounded up to a multiple of this, so that views last for several tokens and stay
# aligned on CUDA. A larger step reads more hidden columns; not tuned.
VIEW_STEP = 16
# The tokens of a block. On average half a block of each row is empty: smaller blocks waste less and take more products.
# On a CPU 32 and 64 are equally fast.
BLOCK_TOKENS = 32
# A CPU reads this many bytes of one layer's hidden keys and values in the time that one more attention call takes.
PIECE_BYTES = 2**18


class BudgetExceeded(Exception):
    """The requested rows do not fit in the budget; the engine turns this into OutOfMemory."""

    def __init__(self, needed_bytes: int) -> None:
        self.needed_bytes = needed_bytes
        super().__init__(f"{needed_bytes} bytes needed")


RowCopy = list[tuple[Tensor, Tensor]]  # one row's keys and values of each layer, [heads, tokens, dim]


class KvCache(RowStates):
    """The keys and values of a running batch, as the models of transformers expect a cache to behave.

    Those models attend to rectangles only; blocks are for a `FusedModel` whose layers hold the same tokens.
    """

    def __init__(
        self,
        layout: KvLayout,
        budget_bytes: int,
        piece_bytes: int = PIECE_BYTES,
        block_tokens: int = BLOCK_TOKENS,
        in_blocks: bool = False,
        by_pages: bool = False,
    ) -> None:
        """If `by_pages`, decoding steps read a rectangle or blocks by pages, as `PageKernels` do, else by views."""
        super().__init__()
        self.layout, self.budget_bytes, self.piece_bytes = layout, budget_bytes, piece_bytes
        self._tokens_of_a_block, self._by_pages = block_tokens, by_pages
        self.arrangement: Rectangle | BlockRows = self._empty_arrangement(in_blocks)
        self._keys, self._values = list[Tensor](), list[Tensor]()
        self.allocations = 0  # how often the memory has been allocated, each time at other addresses
        self._before = 0  # the columns in front of the tokens that the next forward pass computes
        self._slots: dict[LayerSlots, Tensor] = {}  # the slots that the next forward pass writes
        self._unpadded: dict[LayerSlots, Tensor] = {}  # the indices of the pass's states that it writes; no entry: all
        self._cached: dict[LayerSlots, Tensor] = {}  # [rows, heads, n] the slots of tokens that a prefill finds cached
        self._views: list[tuple[Tensor, Tensor]] = []  # the keys and values that decoding reads; empty in a prefill
        # What the views were made for: (rows' lengths, width) in a rectangle, (rows' tokens in the pass, 0) in blocks,
        # (rows' tokens in the pass, tokens of a page) by pages.
        self._viewed_for: tuple[Sequence[int], int] = (), 0
        self.pages: Pages | None = None  # the pages that decoding reads; None if it reads views
        self.query_groups: QueryGroups | None = None  # how decoding reads views of blocks
        self.pieces: list[Piece] = []  # how decoding divides the rows of a rectangle
        self._piece_views: list[list[tuple[Tensor, Tensor]]] = []

    @property
    def nbytes(self) -> int:
        """The bytes of the rectangle, or of all blocks in use."""
        return self.arrangement.taken_bytes(self.layout)

    @property
    def in_blocks(self) -> bool:
        """Whether the cache is in blocks now, so that a pass may compute several tokens of a row."""
        return isinstance(self.arrangement, BlockRows)

    @property
    def _budget_tokens(self) -> int:
        return self.budget_bytes // self.layout.token_bytes

    def needed_bytes(self, lengths: Sequence[int], shared: Sequence[Sequence[int]] = ()) -> int:
        """Returns the fewest bytes for all rows, with these lengths, if joiners share the blocks `shared`."""
        return self.arrangement.needed_bytes(lengths, shared, self.layout)

    def reserve(
        self, lengths: Sequence[int], kept: Sequence[int] = (), shared: Mapping[int, Sequence[int]] | None = None
    ) -> bool:
        """Makes room for lengths[i] tokens in row i; returns whether the slots of last tokens must be computed anew.

        The first kept[i] tokens of row i are kept. Row i shares the blocks shared[i] with other rows. If it raises
        BudgetExceeded, nothing has changed.
        """
        self._allocate()
        now = self.arrangement
        if isinstance(now, BlockRows):
            changes = now.tables.grow(lengths, shared or {})
        else:
            changes = self._enlarge(now, lengths, kept)
        if changes is None:
            raise BudgetExceeded(self.needed_bytes(lengths))
        return self._carry_out(changes) or self.arrangement.rewinds(lengths)

    def clear(self, in_blocks: bool) -> None:
        """Frees all rows; later rows are stored `in_blocks`, which keep prefixes, or in a rectangle."""
        now = self.arrangement
        if isinstance(now, BlockRows):
            self._carry_out(now.tables.clear_all(keep_prefixes=in_blocks))
        else:
            for tensor, of in self._tensors():
                now.by_block(tensor, of).zero_()
        if not (in_blocks and self.in_blocks):
            self.arrangement = self._empty_arrangement(in_blocks)
        self._drop_views()

    def release(self) -> None:
        """Frees all rows and the memory itself, which the next `reserve` allocates again."""
        self.arrangement = self._empty_arrangement(self.in_blocks)
        self._keys, self._values = [], []
        self.drop_states()
        self._drop_views()

    def remove_row(self, row: int, last: int, last_length: int) -> None:
        """Frees a row and gives its index to `last`, the last row, which holds `last_length` tokens."""
        if isinstance(self.arrangement, BlockRows):
            tables = self.arrangement.tables
            self._carry_out(tables.clear(row))
            tables.rows[row] = tables.rows[last]
            tables.rows.pop(last)
            self._drop_views()
        elif row != last:
            for tensor, of in self._tensors():
                rows = self.arrangement.by_block(tensor, of)
                rows[row, :, :last_length] = rows[last, :, :last_length]
            self.move_state(last, row)

    def close_gaps(self) -> bool:
        """Moves blocks into gaps once many blocks before the last one in use are free; returns whether any moved."""
        now = self.arrangement
        return isinstance(now, BlockRows) and self._carry_out(now.tables.close_gaps())

    def prepare_prefill(self, rows: Sequence[int], lengths: Sequence[int], cached: Sequence[int] = ()) -> None:
        """Prepares a forward pass that writes the first lengths[i] tokens of rows[i] and attends only to them.

        The first cached[i] of them are cached already.
        """
        starts, at = cached or [0] * len(rows), self.arrangement
        self._before, self._slots = max(starts), at.token_slots(rows, starts, lengths)
        self._unpadded = at.token_indices(starts, lengths)
        self.begin_states(rows)
        self._drop_views()
        self._cached = at.slots_before(rows, starts) if any(starts) else {}

    def prepare_decode(
        self, slots: dict[LayerSlots, Tensor], lengths: Sequence[int], width: int, counts: Sequence[int] = ()
    ) -> int:
        """Prepares a forward pass that writes `slots`; returns the width that it reads, at least `width`.

        `lengths` are the numbers of cached tokens at an earlier step. Each row has since grown by at most
        `width - max(lengths)` tokens. In blocks row i may have counts[i] tokens, numbered as `token_rows` says.
        """
        self._slots, self._unpadded, self._cached, self._before = slots, {}, {}, 0
        self.continue_states(len(lengths))
        columns, now = self.arrangement.columns, self.arrangement
        counts = counts or [1] * len(lengths)
        if self._by_pages:
            if (counts, now.block_tokens) != self._viewed_for:
                self.pages = pages_of(now, counts, self.layout.max_positions)
                self._viewed_for = counts, now.block_tokens
            return columns
        if isinstance(now, BlockRows):
            if (counts, 0) != self._viewed_for:
                self.query_groups = query_groups(now.tables, counts, self.layout.device)
                self._views = self._layer_views(Piece(0, now.blocks, now.block_tokens))
                self._viewed_for = counts, 0
            return columns
        rows, wanted = len(lengths), -(-width // VIEW_STEP) * VIEW_STEP
        width = min(wanted, columns)  # `width` grows also when the longest row has ended, so it may exceed the columns
        if (lengths, wanted) != self._viewed_for:
            self._views = self._layer_views(Piece(0, rows, width))
            growth = wanted - max(lengths)
            on_cpu = self.layout.device.type == "cpu"  # a GPU reads hidden columns faster than it starts another call
            most_hidden = self.piece_bytes * len(self.layout.shapes) // self.layout.token_bytes if on_cpu else inf
            self.pieces = split_into_pieces([min(length + growth, columns) for length in lengths], most_hidden)
            self._piece_views = [self._layer_views(piece) for piece in self.pieces]
            self._viewed_for = lengths, wanted
        self._before = width - 1
        return width

    def attention_mask(self, mask: Tensor, positions: Tensor) -> Tensor | dict[str, Tensor | None] | None:
        """Returns the model's form of a mask [rows, 1, 1, columns] of rows whose newest tokens are at `positions`.

        `mask` hides the columns without a token.
        """
        columns, most = mask.shape[-1], self.arrangement.most_tokens
        return self.layout.attention_mask(
            mask, positions, lambda window: in_turns(columns, most(window.tokens), positions)
        )

    def piece_views(self, layer_idx: int) -> list[tuple[Tensor, Tensor]]:
        """Returns the keys and values that attention reads for each piece, [rows, heads, columns, dim]."""
        return [views[layer_idx] for views in self._piece_views]

    def of_layer(self, layer_idx: int) -> tuple[Tensor, Tensor]:
        """Returns the memory of a layer's keys and values, [slots, dim]."""
        return self._keys[layer_idx], self._values[layer_idx]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Writes the states [rows, heads, tokens, dim] of a layer; returns the keys and values that it attends to.

        In a prefill, the layer attends to cached prefixes and the states themselves. In decoding it attends to [rows,
        heads, columns, dim], or in blocks to [blocks, heads, block tokens, dim], which `query_groups` assign to rows.
        """
        of = self.layout.slots[layer_idx]
        slots, unpadded, read = self._slots[of], self._unpadded.get(of), [key_states, value_states]
        for side, tensor in enumerate((self._keys[layer_idx], self._values[layer_idx])):
            states = read[side]
            if cached := self._cached:  # read first, because the states may be written over a window's oldest tokens
                held = tensor.index_select(0, cached[of].view(-1)).view(*cached[of].shape, tensor.shape[-1])
                read[side] = torch.cat([held, states], 2)
            written = states.reshape(states.shape[:-1].numel(), states.shape[-1])
            if unpadded is not None:
                written = written.index_select(0, unpadded)
            tensor.index_copy_(0, slots, written)
        if self._views:
            return self._views[layer_idx]
        self.prefilled_layers += 1
        return read[0], read[1]

    def update_indexer(self, indexer_key_states: Tensor, layer_idx: int) -> Tensor:
        """Writes the keys [rows, tokens, dim] of a layer's indexer; returns those of all tokens it chooses from."""
        keys = indexer_key_states.unsqueeze(1)
        return self.update(keys, keys[..., :0], self.layout.indexers[layer_idx])[0].squeeze(1)

    def row_copy(self, row: int, length: int) -> RowCopy:
        """Returns a copy of a row's first `length` tokens, without those to which its next token does not attend."""
        slots, copy = self.arrangement.token_slots([row], [0], [length]), RowCopy()
        for layer, of in enumerate(self.layout.slots):
            if of.heads:
                attended = length - self.layout.first_attended(layer, length)
                held = slots[of].view(of.heads, -1)
                at = held[:, held.shape[1] - attended :]
                copy.append((self._keys[layer][at], self._values[layer][at]))
        return copy

    def copy_tokens(self, source: int, target: int, count: int) -> None:
        """Copies the first `count` tokens of a block to another."""
        for tensor, of in self._tensors():
            blocks = self.arrangement.by_block(tensor, of)
            blocks[target, :, :count] = blocks[source, :, :count]

    def write_row(self, row: int, length: int, copy: RowCopy, start: int = 0) -> None:
        """Writes a row's tokens from `start` up to `length`; a layer with a window gets only the last ones."""
        slots = self.arrangement.token_slots([row], [start], [length])
        for side, (tensor, of) in zip(chain.from_iterable(copy), self._tensors(), strict=True):
            at = slots[of].view(of.heads, -1)
            held = side[:, max(0, side.shape[1] - at.shape[1]) :].to(self.layout.device, non_blocking=True)
            tensor[at[:, at.shape[1] - held.shape[1] :]] = held

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """Returns the column of the first token that the pass computes."""
        return self._before

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Returns how many columns attention reads (an `alibi` mask may hide some), and the number of the first one."""
        return self._before + query_length, 0

    def _empty_arrangement(self, in_blocks: bool) -> Rectangle | BlockRows:
        slots, device, size = tuple(dict.fromkeys(self.layout.slots)), self.layout.device, self._tokens_of_a_block
        slots = tuple(of for of in slots if of.heads)
        if not in_blocks:
            return Rectangle(slots, device)
        tables = BlockTables(self._budget_tokens // size, size, self.layout.most_tokens)
        return BlockRows(slots, device, tables.blocks, size, tables=tables)

    def _allocate(self) -> None:
        """Allocates the whole budget the first time; nothing if layers differ, for which `_divide_anew` allocates."""
        if not self._keys:
            self.allocations += 1
            tokens = self._budget_tokens if self.layout.alike else 0
            for shape in self.layout.shapes:
                self._keys.append(self._zeros(tokens * shape.heads, shape.key_dim))
                self._values.append(self._zeros(tokens * shape.heads, shape.value_dim))

    def _zeros(self, slots: int, dim: int) -> Tensor:
        return zeroed_memory(slots, dim, self.layout.dtype, self.layout.device)

    def _tensors(self) -> Iterator[tuple[Tensor, LayerSlots]]:
        """Yields the keys and the values of each layer that has some, [slots, dim], with the layer's slots."""
        for of, *sides in zip(self.layout.slots, self._keys, self._values, strict=False):
            yield from ((side, of) for side in sides if of.heads)

    def _enlarge(self, old: Rectangle, lengths: Sequence[int], kept: Sequence[int]) -> BlockChanges | None:
        """Enlarges the rectangle, with its contents, if it is too small; returns None if the budget is too small."""
        rows, columns = len(lengths), max(lengths, default=0)
        columns = min(columns, self.layout.most_tokens or columns)
        if rows <= old.blocks and columns <= old.block_tokens:
            return BlockChanges(of_rows=False)
        if rows * self.layout.row_bytes(columns) > self.budget_bytes:
            return None
        new = enlarged_rectangle(old, rows, columns, self.budget_bytes, self.layout)
        kept_at = slice(min(len(kept), old.blocks)), slice(None), slice(max(kept, default=0))
        if self.layout.alike:
            self._move(old, new, kept_at)
        else:
            self._divide_anew(old, new, kept_at)
        self.arrangement = new
        return BlockChanges()

    def _move(self, old: Arrangement, new: Arrangement, kept_at: tuple[slice, ...]) -> None:
        asides: dict[torch.Size, Tensor] = {}  # one for all tensors of a shape, because new memory costs new pages
        for tensor, of in self._tensors():
            held = old.by_block(tensor, of)[kept_at]
            if held.shape not in asides:
                asides[held.shape] = torch.empty_like(held)
            asides[held.shape].copy_(held)
            old.by_block(tensor, of).zero_()
            new.by_block(tensor, of)[kept_at] = asides[held.shape]

    def _divide_anew(self, old: Arrangement, new: Arrangement, kept_at: tuple[slice, ...]) -> None:
        """Gives each layer memory of its own size: the longer the rows, the less is for layers with a window."""
        for sides in (self._keys, self._values):
            for layer, of in enumerate(self.layout.slots):
                held = old.by_block(sides[layer], of)[kept_at]
                sides[layer] = self._zeros(new.blocks * of.heads * new.columns_of(of), held.shape[-1])
                new.by_block(sides[layer], of)[kept_at] = held

    def _carry_out(self, changes: BlockChanges) -> bool:
        """Changes the contents of blocks; returns whether any row has other blocks than before."""
        if changes.sources or changes.zeroed:
            self.arrangement.change(self._tensors(), changes)
        if changes.of_rows:
            self._drop_views()
        return changes.of_rows

    def _drop_views(self) -> None:
        self._cached, self._views, self._viewed_for = {}, [], ((), 0)
        self.pieces, self._piece_views, self.query_groups, self.pages = [], [], None, None

    def _layer_views(self, piece: Piece) -> list[tuple[Tensor, Tensor]]:
        read = slice(piece.start, piece.stop), slice(None), slice(piece.width)
        by_block, layers = self.arrangement.by_block, zip(self.layout.slots, self._keys, self._values, strict=True)
        return [(by_block(keys, of)[read], by_block(values, of)[read]) for of, keys, values in layers]
