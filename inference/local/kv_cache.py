"""The KV cache: preallocated, grown in steps, written in place, never concatenated.

Each layer has one tensor for keys and one for values, viewed as [rows, heads, columns, dim]. A row's tokens start at
column 0, whatever else is in the batch: a token's column is its position in the sequence. So a joiner of any length
moves no other row and needs no padding in front, and attention reads only as many columns as the longest row fills. The
mask hides what lies behind a row's last token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from torch import Tensor
from transformers import Cache

# Columns are allocated in such steps. Each growth copies the cache once: a smaller step costs more copies, a larger one
# more memory that is not filled. Not tuned.
COLUMN_STEP = 64
# The width that attention reads is rounded up to this, so that its views last so many steps and stay aligned on CUDA. A
# larger step reads more hidden columns; not tuned.
VIEW_STEP = 16
# Of hidden keys and values in one layer: on a CPU, reading so many takes as long as one more attention call.
PIECE_BYTES = 2**18


class BudgetExceeded(Exception):
    """The cache cannot hold what was asked for within its budget; the engine turns it into OutOfMemory."""

    def __init__(self, needed_bytes: int) -> None:
        self.needed_bytes = needed_bytes
        super().__init__(f"{needed_bytes} bytes needed")


@dataclass(frozen=True, slots=True)
class KvLayout:
    """The shape of what is cached for one token: a key and a value for each head of each layer."""

    layers: int
    heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def token_bytes(self) -> int:
        """Δ of Magnus Eq. (1): bytes that one token takes."""
        return self.layers * self.heads * (self.key_dim + self.value_dim) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Piece:
    """Neighbouring rows that attention reads in one call, up to the width of the longest of them."""

    start: int
    stop: int
    width: int


HostRow = list[tuple[Tensor, Tensor]]  # one row's keys and values of each layer, [heads, tokens, dim], in host memory


class KvCache(Cache):  # type: ignore[misc]  # transformers is untyped
    """The keys and values of a running batch, as the models of transformers expect a cache to behave."""

    def __init__(self, layout: KvLayout, budget_bytes: int, piece_bytes: int = PIECE_BYTES) -> None:
        super().__init__(layers=[])
        self.layout, self.budget_bytes, self.piece_bytes = layout, budget_bytes, piece_bytes
        self.rows = self.columns = 0
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._slots = torch.empty(0, dtype=torch.long)  # indices that the next forward pass writes to
        self._views: list[tuple[Tensor, Tensor]] = []  # what it attends to; empty in a prefill
        self._viewed_for: tuple[Sequence[int], int] = (), 0
        self.pieces: list[Piece] = []  # into which decoding divides the rows
        self._piece_views: list[list[tuple[Tensor, Tensor]]] = []

    @property
    def nbytes(self) -> int:
        """Bytes held, counted from the tensors themselves."""
        return sum(tensor.untyped_storage().nbytes() for tensor in (*self._keys, *self._values))

    def reserve(self, rows: int, columns: int, keep: tuple[int, int] = (0, 0)) -> bool:
        """Grow to at least so many rows and columns; returns whether tensors moved. Raises BudgetExceeded.

        `keep` is the (rows, columns) corner whose content survives a move. Where the budget allows, a quarter more
        columns and half as many rows again are allocated, so that the next growth comes later.
        """
        if rows <= self.rows and columns <= self.columns:
            return False
        tokens = self.budget_bytes // self.layout.token_bytes
        if rows * columns > tokens:
            raise BudgetExceeded(rows * columns * self.layout.token_bytes)
        new_columns, new_rows = self.columns, max(rows, self.rows)
        if columns > self.columns:
            new_columns = -(-(columns + columns // 4) // COLUMN_STEP) * COLUMN_STEP
        if rows > self.rows > 0:
            new_rows += rows // 2
        new_columns = max(columns, min(new_columns, tokens // rows))
        self._reallocate(min(new_rows, tokens // new_columns), new_columns, keep)
        return True

    def trim(self, rows: int, columns: int) -> bool:
        """Shrink once less than a quarter of the memory is needed; returns whether tensors moved."""
        needed_columns = -(-(columns + columns // 4) // COLUMN_STEP) * COLUMN_STEP
        if 4 * rows * needed_columns >= self.rows * self.columns:
            return False
        self._reallocate(rows, needed_columns, (rows, min(columns, self.columns)))  # the next column may be a new one
        return True

    def release(self) -> None:
        """Free all memory."""
        self.rows = self.columns = 0
        self._keys, self._values = [], []
        self._drop_views()

    def prepare_prefill(self, rows: Sequence[int], length: int) -> None:
        """Let the next forward pass write the first `length` columns of these rows, and attend only to these."""
        heads, device = self.layout.heads, self.layout.device
        head_rows = torch.tensor(rows, device=device)[:, None] * heads + torch.arange(heads, device=device)
        self._slots = (head_rows[..., None] * self.columns + torch.arange(length, device=device)).view(-1)
        self._drop_views()

    def prepare_decode(self, slots: Tensor, lengths: Sequence[int], width: int) -> int:
        """Let the next forward pass write `slots`, [rows * heads]; returns the width it attends to, at least `width`.

        `lengths` are the rows' cached tokens at an earlier step; since then each row may have grown by as many tokens
        as the longest one, `width - max(lengths)`.
        """
        rows, width = len(lengths), min(-(-width // VIEW_STEP) * VIEW_STEP, self.columns)
        self._slots = slots
        if (lengths, width) != self._viewed_for:
            self._views = self._views_of(Piece(0, rows, width))
            growth = width - max(lengths)
            self.pieces = self._split_into_pieces([length + growth for length in lengths])
            self._piece_views = [self._views_of(piece) for piece in self.pieces]
            self._viewed_for = lengths, width
        return width

    def piece_views(self, layer_idx: int) -> list[tuple[Tensor, Tensor]]:
        """Keys and values that attention reads for each piece, [rows, heads, columns, dim]."""
        return [views[layer_idx] for views in self._piece_views]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Called by each layer's attention: writes [rows, heads, tokens, dim], returns all that it attends to."""
        self._keys[layer_idx].index_copy_(0, self._slots, key_states.reshape(-1, key_states.shape[-1]))
        self._values[layer_idx].index_copy_(0, self._slots, value_states.reshape(-1, value_states.shape[-1]))
        return self._views[layer_idx] if self._views else (key_states, value_states)

    def copy_row(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of row `source` to row `target`."""
        for tensor in (*self._keys, *self._values):
            rows = self._by_row(tensor)
            rows[target, :, :length] = rows[source, :, :length]

    def row_to_host(self, row: int, length: int) -> HostRow:
        """A copy of a row's first `length` tokens in host memory."""
        return [
            (
                self._by_row(keys)[row, :, :length].to("cpu", copy=True),
                self._by_row(values)[row, :, :length].to("cpu", copy=True),
            )
            for keys, values in zip(self._keys, self._values, strict=True)
        ]

    def row_from_host(self, row: int, host: HostRow) -> None:
        """Write a row that `row_to_host` read."""
        for layer, (keys, values) in enumerate(host):
            self._by_row(self._keys[layer])[row, :, : keys.shape[1]] = keys.to(self.layout.device)
            self._by_row(self._values[layer])[row, :, : values.shape[1]] = values.to(self.layout.device)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Always 0: our forward passes are given their positions."""
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """A prefill starts at column 0."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Asked in a prefill only, which attends to itself; decoding passes its own mask."""
        return query_length, 0

    def _by_row(self, tensor: Tensor) -> Tensor:
        return tensor.view(self.rows, self.layout.heads, self.columns, tensor.shape[-1])

    def _reallocate(self, rows: int, columns: int, keep: tuple[int, int]) -> None:
        """Reallocate one layer after the other, so that only one layer exists twice at any moment."""
        old = self.rows, self.columns
        kept_rows, kept_columns = keep
        heads, dtype, device = self.layout.heads, self.layout.dtype, self.layout.device
        if not self._keys:
            dims = [self.layout.key_dim] * self.layout.layers, [self.layout.value_dim] * self.layout.layers
            self._keys, self._values = (
                [torch.empty(0, dim, dtype=dtype, device=device) for dim in side] for side in dims
            )
        for tensors in (self._keys, self._values):
            for layer, tensor in enumerate(tensors):
                # zeros, not empty: hidden columns are multiplied by 0, and 0 times an old NaN would be NaN
                new = torch.zeros(rows * heads * columns, tensor.shape[-1], dtype=dtype, device=device)
                if kept_rows:
                    source = tensor.view(old[0], heads, old[1], -1)[:kept_rows, :, :kept_columns]
                    new.view(rows, heads, columns, -1)[:kept_rows, :, :kept_columns] = source
                tensors[layer] = new
        self.rows, self.columns = rows, columns
        self._drop_views()

    def _drop_views(self) -> None:
        self._views, self._viewed_for = [], ((), 0)
        self.pieces, self._piece_views = [], []

    def _views_of(self, piece: Piece) -> list[tuple[Tensor, Tensor]]:
        start, stop, width = piece.start, piece.stop, piece.width
        return [
            (self._by_row(keys)[start:stop, :, :width], self._by_row(values)[start:stop, :, :width])
            for keys, values in zip(self._keys, self._values, strict=True)
        ]

    def _split_into_pieces(self, lengths: Sequence[int]) -> list[Piece]:
        """Divide the rows so that reading a piece's hidden columns costs less than another call; one piece on a GPU."""
        on_cpu = self.layout.device.type == "cpu"
        most = self.piece_bytes * self.layout.layers // self.layout.token_bytes if on_cpu else inf
        pieces, hidden = [Piece(0, 1, lengths[0])], 0
        for row, length in enumerate(lengths[1:], 1):
            last = pieces[-1]
            width = max(last.width, length)
            hidden += (row - last.start) * (width - last.width) + width - length
            if hidden <= most:
                pieces[-1] = Piece(last.start, row + 1, width)
            else:
                pieces.append(Piece(row, row + 1, length))
                hidden = 0
        return pieces
