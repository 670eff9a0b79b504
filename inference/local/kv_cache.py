"""The KV cache: preallocated, written in place, never concatenated; a rectangle, or blocks when memory is scarce.

Each layer has one tensor for keys and one for values, viewed as [blocks, heads, block tokens, dim]. A token's column is
its position in the sequence, whatever else is in the batch: a joiner of any length moves no other row and needs no
padding in front. The mask hides what lies behind a row's last token.

In a rectangle each row has one block, as wide as the longest row needs, grown in steps. Attention then reads
neighbouring rows by one view, which is fastest. Where rows join and leave (`use_blocks`) and a rectangle would exceed
the budget, the whole budget is divided into blocks of BLOCK_TOKENS, and each row has as many as its own tokens need.
Once the rows need half of the budget as a rectangle, they are one again.
"""

from collections.abc import Sequence
from math import inf
from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from inference.local.memory.arrangement import Arrangement
from inference.local.memory.block_tables import BlockIndex, BlockTables, blocks_for
from inference.local.memory.kv_layout import KvLayout
from inference.local.memory.pieces import Piece, split_into_pieces

# Columns are allocated in such steps. Each growth copies the cache once: a smaller step costs more copies, a larger one
# more memory that is not filled. Not tuned.
COLUMN_STEP = 64
# The width that attention reads is rounded up to this, so that its views last so many steps and stay aligned on CUDA. A
# larger step reads more hidden columns; not tuned.
VIEW_STEP = 16
# Tokens of a block. Half a block a row stays empty in the mean; smaller ones leave less empty and take more products.
# On a CPU 32 and 64 are equally fast.
BLOCK_TOKENS = 32
# Of the budget that a rectangle of the rows may need for the blocks to become one again. Both ways copy the cache once;
# any value between a half and three quarters keeps the two apart.
RECTANGLE_SHARE = 0.5
# Of hidden keys and values in one layer: on a CPU, reading so many takes as long as one more attention call.
PIECE_BYTES = 2**18


class BudgetExceeded(Exception):
    """The cache cannot hold what was asked for within its budget; the engine turns it into OutOfMemory."""

    def __init__(self, needed_bytes: int) -> None:
        self.needed_bytes = needed_bytes
        super().__init__(f"{needed_bytes} bytes needed")


HostRow = list[tuple[Tensor, Tensor]]  # one row's keys and values of each layer, [heads, tokens, dim], in host memory


class KvCache(Cache):  # type: ignore[misc]  # transformers is untyped
    """The keys and values of a running batch, as the models of transformers expect a cache to behave.

    Those models attend to rectangles only; `use_blocks` is for `FusedModel`.
    """

    def __init__(
        self,
        layout: KvLayout,
        budget_bytes: int,
        piece_bytes: int = PIECE_BYTES,
        block_tokens: int = BLOCK_TOKENS,
        use_blocks: bool = False,
    ) -> None:
        super().__init__(layers=[])
        self.layout, self.budget_bytes, self.piece_bytes = layout, budget_bytes, piece_bytes
        self.use_blocks, self._tokens_of_a_block = use_blocks, block_tokens
        self.arrangement = Arrangement(layout.heads, layout.device)
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._slots = torch.empty(0, dtype=torch.long)  # indices that the next forward pass writes to
        self._unpadded: Tensor | None = None  # which of its keys and values it writes; None: all
        self._views: list[tuple[Tensor, Tensor]] = []  # what it attends to; empty in a prefill
        self._viewed_for: tuple[Sequence[int], int] = (), 0
        self.block_index: BlockIndex | None = None  # in blocks, how decoding reads them
        self.pieces: list[Piece] = []  # in a rectangle, into which decoding divides the rows
        self._piece_views: list[list[tuple[Tensor, Tensor]]] = []

    @property
    def nbytes(self) -> int:
        """Bytes held, counted from the tensors themselves."""
        return sum(tensor.untyped_storage().nbytes() for tensor in (*self._keys, *self._values))

    @property
    def in_blocks(self) -> bool:
        """Whether rows have blocks now, rather than a rectangle."""
        return self.arrangement.tables is not None

    @property
    def _budget_tokens(self) -> int:
        return self.budget_bytes // self.layout.token_bytes

    def needed_bytes(self, lengths: Sequence[int]) -> int:
        """The least memory that holds rows of so many tokens."""
        tokens = len(lengths) * max(lengths, default=0)
        if self.use_blocks:
            size = self._tokens_of_a_block
            tokens = min(tokens, size * sum(blocks_for(length, size) for length in lengths))
        return tokens * self.layout.token_bytes

    def reserve(self, lengths: Sequence[int], kept: Sequence[int] = ()) -> bool:
        """Let row i hold at least lengths[i] tokens; returns whether any are written elsewhere than before.

        The first kept[i] tokens of row i survive. Raises BudgetExceeded, and nothing has changed. Where the budget
        allows, a quarter more columns of a rectangle and half as many rows again are allocated, so that the next growth
        comes later.
        """
        now, tokens = self.arrangement, self._budget_tokens
        if now.tables is not None and (taken := now.tables.grow(lengths)) >= 0:
            if taken:
                self._drop_views()
            return taken > 0
        rows, columns = len(lengths), max(lengths, default=0)
        if now.tables is None and rows <= now.blocks and columns <= now.block_tokens:
            return False
        if rows * columns <= tokens:
            self._rearrange(*self._grown(rows, columns), None, kept)
        elif now.tables is None and self.needed_bytes(lengths) <= self.budget_bytes:
            tables = BlockTables(tokens // self._tokens_of_a_block, self._tokens_of_a_block)
            tables.grow(lengths)
            self._rearrange(tables.blocks, tables.block_tokens, tables, kept)
        else:
            raise BudgetExceeded(self.needed_bytes(lengths))
        return True

    def trim(self, cached: Sequence[int]) -> bool:
        """Shrink a rectangle to a quarter, or make one of blocks, if the rows' tokens need no more; whether it did."""
        rows, columns = len(cached), max(cached, default=0) + 1  # the next column may be a new one
        columns = -(-(columns + columns // 4) // COLUMN_STEP) * COLUMN_STEP
        now = self.arrangement
        if now.tables is not None:
            if rows * columns > RECTANGLE_SHARE * self._budget_tokens:
                return False
        elif 4 * rows * columns >= now.blocks * now.block_tokens:
            return False
        self._rearrange(rows, columns, None, cached)
        return True

    def release(self) -> None:
        """Free all memory."""
        self.arrangement = Arrangement(self.layout.heads, self.layout.device)
        self._keys, self._values = [], []
        self._drop_views()

    def clear_row(self, row: int) -> None:
        """Free what a row holds; it keeps its index."""
        tables = self.arrangement.tables
        if tables is not None and (freed := tables.clear(row)):
            # zeros, as all that no row has written: hidden columns are multiplied by 0, and 0 times NaN would be NaN
            blocks = torch.tensor(freed, device=self.layout.device)
            for tensor in (*self._keys, *self._values):
                self._by_block(tensor).index_fill_(0, blocks, 0)
            self._drop_views()

    def remove_row(self, row: int, last: int, last_length: int) -> None:
        """Free row `row`, and let row `last`, which is the last one and holds so many tokens, take its index."""
        tables = self.arrangement.tables
        if tables is not None:
            self.clear_row(row)
            tables.rows[row] = tables.rows[last]
            tables.rows.pop(last)
            self._drop_views()
        elif row != last:
            for tensor in (*self._keys, *self._values):
                rows = self._by_block(tensor)
                rows[row, :, :last_length] = rows[last, :, :last_length]

    def prepare_prefill(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        """Let the next forward pass write the first tokens of these rows, so many each, and attend only to them."""
        heads, longest, device = self.layout.heads, max(lengths), self.layout.device
        self._slots = self.arrangement.slots_of(rows, lengths)
        self._unpadded = None
        if min(lengths) < longest:
            is_token = torch.arange(longest, device=device) < torch.tensor(lengths, device=device)[:, None]
            self._unpadded = is_token[:, None].expand(-1, heads, -1).reshape(-1).nonzero().view(-1)
        self._drop_views()

    def prepare_decode(self, slots: Tensor, lengths: Sequence[int], width: int) -> int:
        """Let the next forward pass write `slots`, [rows * heads]; returns the width it attends to, at least `width`.

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
        rows, width = len(lengths), min(-(-width // VIEW_STEP) * VIEW_STEP, columns)
        if (lengths, width) != self._viewed_for:
            self._views = self._views_of(Piece(0, rows, width))
            growth = width - max(lengths)
            on_cpu = self.layout.device.type == "cpu"  # a GPU reads hidden columns faster than it starts another call
            most_hidden = self.piece_bytes * self.layout.layers // self.layout.token_bytes if on_cpu else inf
            self.pieces = split_into_pieces([length + growth for length in lengths], most_hidden)
            self._piece_views = [self._views_of(piece) for piece in self.pieces]
            self._viewed_for = lengths, width
        return width

    def piece_views(self, layer_idx: int) -> list[tuple[Tensor, Tensor]]:
        """Keys and values that attention reads for each piece, [rows, heads, columns, dim]."""
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
        """A copy of a row's first `length` tokens in host memory."""
        slots, heads = self.arrangement.slots_of([row], [length]), self.layout.heads
        return [
            (
                keys.index_select(0, slots).view(heads, length, -1).cpu(),
                values.index_select(0, slots).view(heads, length, -1).cpu(),
            )
            for keys, values in zip(self._keys, self._values, strict=True)
        ]

    def row_from_host(self, row: int, host: HostRow) -> None:
        """Write a row that `row_to_host` read."""
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
        """Asked in a prefill only, which attends to itself; decoding passes its own mask."""
        return query_length, 0

    def _by_block(self, tensor: Tensor) -> Tensor:
        return tensor.view(self.arrangement.blocks, self.layout.heads, self.arrangement.block_tokens, tensor.shape[-1])

    def _grown(self, rows: int, columns: int) -> tuple[int, int]:
        """The rows and columns of a rectangle that has at least so many."""
        now, tokens = self.arrangement, self._budget_tokens
        if now.tables is not None:
            return rows, columns
        new_columns, new_rows = now.block_tokens, max(rows, now.blocks)
        if columns > now.block_tokens:
            new_columns = -(-(columns + columns // 4) // COLUMN_STEP) * COLUMN_STEP
        if rows > now.blocks > 0:
            new_rows += rows // 2
        new_columns = max(columns, min(new_columns, tokens // rows))
        return min(new_rows, tokens // new_columns), new_columns

    def _rearrange(self, blocks: int, block_tokens: int, tables: BlockTables | None, kept: Sequence[int]) -> None:
        """Move row i's first kept[i] tokens to new tensors, one after the other: at most one layer exists twice."""
        heads, dtype, device = self.layout.heads, self.layout.dtype, self.layout.device
        if not self._keys:
            self._keys, self._values = (
                [torch.empty(0, dim, dtype=dtype, device=device) for _ in range(self.layout.layers)]
                for dim in (self.layout.key_dim, self.layout.value_dim)
            )
        old, new = self.arrangement, Arrangement(heads, device, blocks, block_tokens, tables)
        kept_at = slice(min(len(kept), old.blocks)), slice(None), slice(max(kept, default=0))
        by_slots = old.tables is not None or tables is not None
        source, target = (each.slots_of(range(len(kept)), kept) if by_slots else None for each in (old, new))
        for tensors in (self._keys, self._values):
            for layer, tensor in enumerate(tensors):
                # zeros, not empty: hidden columns are multiplied by 0, and 0 times an old NaN would be NaN
                zeros = torch.zeros(blocks * heads * block_tokens, tensor.shape[-1], dtype=dtype, device=device)
                if source is not None and target is not None:
                    zeros.index_copy_(0, target, tensor.index_select(0, source))
                else:  # 64 rows of SmolLM2 in bfloat16 grow in 52 ms, by their slots in 112 to 208
                    zeros.view(blocks, heads, block_tokens, tensor.shape[-1])[kept_at] = self._by_block(tensor)[kept_at]
                tensors[layer] = zeros
        self.arrangement = new
        self._drop_views()

    def _drop_views(self) -> None:
        self._views, self._viewed_for = [], ((), 0)
        self.pieces, self._piece_views, self.block_index = [], [], None

    def _views_of(self, piece: Piece) -> list[tuple[Tensor, Tensor]]:
        read = slice(piece.start, piece.stop), slice(None), slice(piece.width)
        keys, values = ([self._by_block(each)[read] for each in side] for side in (self._keys, self._values))
        return [*zip(keys, values, strict=True)]
