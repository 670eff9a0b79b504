"""The KV cache: memory of the whole budget, taken once and written in place; a rectangle, or blocks.

Each layer has one tensor for keys and one for values, of which the rows have the first [blocks, heads, block tokens,
dim]. A token's column is its position in the sequence, whatever else is in the batch: a joiner of any length moves no
other row and needs no padding in front. The mask hides what lies behind a row's last token.

In a rectangle each row has one block, as wide as the longest row needs, grown in steps, each of which moves all rows:
used for run-to-completion batches, whose memory the papers count like this, and for models without `FusedModel`. In
blocks of BLOCK_TOKENS each row has as many as its own tokens need, and nothing is ever moved.

Unused memory is zero: hidden columns are multiplied by 0, and 0 times an old NaN would be NaN.
"""

from collections.abc import Sequence
from math import inf
from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from inference.local.kv_arrangement import Arrangement, BlockIndex, BlockTables, Piece, blocks_for, split_into_pieces
from inference.local.kv_budget import COLUMN_STEP, KvLayout, zeros

# Attention reads a width rounded up to this step, so that views last for several tokens and stay aligned on CUDA. A
# larger step reads more hidden columns; not tuned.
VIEW_STEP = 16
# Tokens of a block. On average half a block of each row is empty; smaller blocks waste less memory and need more
# products. On a CPU 32 and 64 are equally fast.
BLOCK_TOKENS = 32
# Bytes of hidden keys and values of a layer that a CPU reads in the time of one attention call.
PIECE_BYTES = 2**18


class BudgetExceeded(Exception):
    """The budget is too small for the requested rows; the engine turns this into OutOfMemory."""

    def __init__(self, needed_bytes: int) -> None:
        self.needed_bytes = needed_bytes
        super().__init__(f"{needed_bytes} bytes needed")


HostRow = list[tuple[Tensor, Tensor]]  # one row's keys and values of each layer, [heads, tokens, dim], in host memory


class KvCache(Cache):  # type: ignore[misc]  # transformers is untyped
    """The keys and values of a running batch, as the models of transformers expect a cache to behave.

    Those models attend to rectangles only; blocks are for `FusedModel`.
    """

    def __init__(
        self,
        layout: KvLayout,
        budget_bytes: int,
        piece_bytes: int = PIECE_BYTES,
        block_tokens: int = BLOCK_TOKENS,
        in_blocks: bool = False,
    ) -> None:
        super().__init__(layers=[])
        self.layout, self.budget_bytes, self.piece_bytes = layout, budget_bytes, piece_bytes
        self._tokens_of_a_block = block_tokens
        self.arrangement = self._empty_arrangement(in_blocks)
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._slots = torch.empty(0, dtype=torch.long)  # indices that the next forward pass writes to
        self._unpadded: Tensor | None = None  # the keys and values without padding, which it writes; None: all
        self._views: list[tuple[Tensor, Tensor]] = []  # keys and values that it attends to; empty in a prefill
        self._viewed_for: tuple[Sequence[int], int] = (), 0
        self.block_index: BlockIndex | None = None  # in blocks, how decoding reads them
        self.pieces: list[Piece] = []  # in a rectangle: the parts into which decoding divides the rows
        self._piece_views: list[list[tuple[Tensor, Tensor]]] = []

    @property
    def nbytes(self) -> int:
        """Bytes that rows hold: a rectangle's, or those of the blocks that are not free."""
        return self.arrangement.taken_tokens * self.layout.token_bytes

    @property
    def in_blocks(self) -> bool:
        """Whether rows have blocks now, rather than a rectangle."""
        return self.arrangement.tables is not None

    @property
    def _budget_tokens(self) -> int:
        return self.budget_bytes // self.layout.token_bytes

    def needed_bytes(self, lengths: Sequence[int]) -> int:
        """Returns the least bytes that hold rows of these lengths."""
        size = self._tokens_of_a_block
        if self.in_blocks:
            return size * sum(blocks_for(length, size) for length in lengths) * self.layout.token_bytes
        return len(lengths) * max(lengths, default=0) * self.layout.token_bytes

    def reserve(self, lengths: Sequence[int], kept: Sequence[int] = ()) -> bool:
        """Gives row i space for at least lengths[i] tokens; returns whether the places to write to have changed. Keeps
        the first kept[i] tokens of row i. Raises BudgetExceeded without any change. Where the budget allows, a
        rectangle gets a quarter more columns and half as many rows again, so that the next growth comes later.
        """
        self._take_memory()
        tables = self.arrangement.tables
        changed = self._widened(lengths, kept) if tables is None else tables.grow(lengths)
        if changed is None:
            raise BudgetExceeded(self.needed_bytes(lengths))
        if changed:
            self._drop_views()
        return bool(changed)

    def clear(self, in_blocks: bool) -> None:
        """Frees all rows; the next rows are in blocks or in a rectangle."""
        now = self.arrangement
        if now.tables is not None:
            for row in range(len(now.tables.rows)):
                self.clear_row(row)
        else:
            for tensor in (*self._keys, *self._values):
                now.by_block(tensor).zero_()
        self.arrangement = self._empty_arrangement(in_blocks)
        self._drop_views()

    def release(self) -> None:
        """Frees all rows and the memory itself, until the next rows come."""
        self.arrangement = self._empty_arrangement(self.in_blocks)
        self._keys, self._values = [], []
        self._drop_views()

    def clear_row(self, row: int) -> None:
        """Frees the blocks of a row, which keeps its index."""
        tables = self.arrangement.tables
        if tables is not None and (freed := tables.clear(row)):
            blocks = torch.tensor(freed, device=self.layout.device)
            for tensor in (*self._keys, *self._values):
                self.arrangement.by_block(tensor).index_fill_(0, blocks, 0)
            self._drop_views()

    def remove_row(self, row: int, last: int, last_length: int) -> None:
        """Frees a row and gives its index to `last`, the last row, which holds `last_length` tokens."""
        tables = self.arrangement.tables
        if tables is not None:
            self.clear_row(row)
            tables.rows[row] = tables.rows[last]
            tables.rows.pop(last)
            self._drop_views()
        elif row != last:
            for tensor in (*self._keys, *self._values):
                rows = self.arrangement.by_block(tensor)
                rows[row, :, :last_length] = rows[last, :, :last_length]

    def close_gaps(self) -> bool:
        """Compacts the blocks once many blocks between rows are free; returns whether any moved."""
        now, device = self.arrangement, self.layout.device
        moved, places = now.tables.closed_gaps() if now.tables is not None else ([], [])
        if not moved:
            return False
        source, target = torch.tensor(moved, device=device), torch.tensor(places, device=device)
        for tensor in (*self._keys, *self._values):
            blocks = now.by_block(tensor)
            blocks.index_copy_(0, target, blocks.index_select(0, source))
            blocks.index_fill_(0, source, 0)
        self._drop_views()
        return True

    def prepare_prefill(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        """Makes the next forward pass write the first lengths[i] tokens of rows[i], and attend only to them."""
        heads, longest, device = self.layout.heads, max(lengths), self.layout.device
        self._slots = self.arrangement.slots_of(rows, lengths)
        self._unpadded = None
        if min(lengths) < longest:
            is_token = torch.arange(longest, device=device) < torch.tensor(lengths, device=device)[:, None]
            self._unpadded = is_token[:, None].expand(-1, heads, -1).reshape(-1).nonzero().view(-1)
        self._drop_views()

    def prepare_decode(self, slots: Tensor, lengths: Sequence[int], width: int) -> int:
        """Makes the next forward pass write `slots`, [rows * heads]; returns the width it attends to, at least `width`.

        `lengths` are the rows' cached tokens at an earlier step; since then each row may have grown by as many tokens
        as the longest one, `width - max(lengths)`.
        """
        self._slots, self._unpadded = slots, None
        columns, tables = self.arrangement.columns, self.arrangement.tables
        if tables is not None:
            if self.block_index is None:
                self.block_index = tables.index(self.layout.device)
                self._views = self._views_of(Piece(0, len(self.block_index.row_of), tables.block_tokens))
            return columns
        rows, wanted = len(lengths), -(-width // VIEW_STEP) * VIEW_STEP
        width = min(wanted, columns)  # an ended row grows no more, so its width may exceed the columns
        if (lengths, wanted) != self._viewed_for:
            self._views = self._views_of(Piece(0, rows, width))
            growth = wanted - max(lengths)
            on_cpu = self.layout.device.type == "cpu"  # a GPU reads hidden columns faster than it starts another call
            most_hidden = self.piece_bytes * self.layout.layers // self.layout.token_bytes if on_cpu else inf
            self.pieces = split_into_pieces([min(length + growth, columns) for length in lengths], most_hidden)
            self._piece_views = [self._views_of(piece) for piece in self.pieces]
            self._viewed_for = lengths, wanted
        return width

    def piece_views(self, layer_idx: int) -> list[tuple[Tensor, Tensor]]:
        """Returns the keys and values that attention reads for each piece, [rows, heads, columns, dim]."""
        return [views[layer_idx] for views in self._piece_views]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Called by each layer's attention: writes [rows, heads, tokens, dim], returns all that it attends to.

        That is the states themselves in a prefill; when decoding, [rows, heads, columns, dim], or in blocks
        [blocks, heads, block tokens, dim], to be read by `block_index`.
        """
        for tensor, states in ((self._keys[layer_idx], key_states), (self._values[layer_idx], value_states)):
            written = states.reshape(-1, states.shape[-1])
            if self._unpadded is not None:
                written = written.index_select(0, self._unpadded)
            tensor.index_copy_(0, self._slots, written)
        return self._views[layer_idx] if self._views else (key_states, value_states)

    def row_to_host(self, row: int, length: int) -> HostRow:
        """Returns a copy of a row's first `length` tokens in host memory."""
        slots, heads = self.arrangement.slots_of([row], [length]), self.layout.heads
        return [
            (
                keys.index_select(0, slots).view(heads, length, -1).cpu(),
                values.index_select(0, slots).view(heads, length, -1).cpu(),
            )
            for keys, values in zip(self._keys, self._values, strict=True)
        ]

    def row_from_host(self, row: int, host: HostRow) -> None:
        """Writes a row that `row_to_host` read."""
        slots = self.arrangement.slots_of([row], [host[0][0].shape[1]])
        for layer, (keys, values) in enumerate(host):
            self._keys[layer].index_copy_(0, slots, keys.flatten(0, 1).to(self.layout.device))
            self._values[layer].index_copy_(0, slots, values.flatten(0, 1).to(self.layout.device))

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Always 0: our forward passes are given their positions."""
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """A prefill starts at column 0."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Returns the mask's size for a prefill, which attends to itself; decoding passes its own mask."""
        return query_length, 0

    def _empty_arrangement(self, in_blocks: bool) -> Arrangement:
        heads, device, size = self.layout.heads, self.layout.device, self._tokens_of_a_block
        if not in_blocks:
            return Arrangement(heads, device)
        tables = BlockTables(self._budget_tokens // size, size)
        return Arrangement(heads, device, tables.blocks, size, tables)

    def _take_memory(self) -> None:
        """Takes the memory of the whole budget, unless it is taken already."""
        if not self._keys:
            layout, rows = self.layout, self._budget_tokens * self.layout.heads
            self._keys, self._values = (
                [zeros(rows, dim, layout.dtype, layout.device) for _ in range(layout.layers)]
                for dim in (layout.key_dim, layout.value_dim)
            )

    def _grown(self, rows: int, columns: int) -> tuple[int, int]:
        """Returns the rows and columns to which a rectangle grows that must have at least these."""
        now, tokens = self.arrangement, self._budget_tokens
        new_columns, new_rows = now.block_tokens, max(rows, now.blocks)
        if columns > now.block_tokens:
            new_columns = -(-(columns + columns // 4) // COLUMN_STEP) * COLUMN_STEP
        if rows > now.blocks > 0:
            new_rows += rows // 2
        new_columns = max(columns, min(new_columns, tokens // rows))
        return min(new_rows, tokens // new_columns), new_columns

    def _widened(self, lengths: Sequence[int], kept: Sequence[int]) -> bool | None:
        """Enlarges the rectangle, if needed; returns whether it did, or None if the budget is too small."""
        old, rows, columns = self.arrangement, len(lengths), max(lengths, default=0)
        if rows <= old.blocks and columns <= old.block_tokens:
            return False
        if rows * columns > self._budget_tokens:
            return None
        new = Arrangement(self.layout.heads, self.layout.device, *self._grown(rows, columns))
        kept_at = slice(min(len(kept), old.blocks)), slice(None), slice(max(kept, default=0))
        for tensors in (self._keys, self._values):
            aside = torch.empty_like(old.by_block(tensors[0])[kept_at])
            for tensor in tensors:
                aside.copy_(old.by_block(tensor)[kept_at])
                old.by_block(tensor).zero_()
                new.by_block(tensor)[kept_at] = aside
        self.arrangement = new
        return True

    def _drop_views(self) -> None:
        self._views, self._viewed_for = [], ((), 0)
        self.pieces, self._piece_views, self.block_index = [], [], None

    def _views_of(self, piece: Piece) -> list[tuple[Tensor, Tensor]]:
        read = slice(piece.start, piece.stop), slice(None), slice(piece.width)
        keys, values = ([self.arrangement.by_block(each)[read] for each in side] for side in (self._keys, self._values))
        return [*zip(keys, values, strict=True)]
