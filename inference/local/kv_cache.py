"""The key-value cache: preallocated, grown in steps, written in place, never concatenated.

Each layer owns one tensor for keys and one for values, seen as [rows, heads, columns, dim]. A row's tokens start at
column 0, whatever else is in the batch, so a joiner of any length moves nobody, no front padding arises that would
have to be released, and the width that attention reads is that of the longest row. Its position in the sequence is a
token's column; what lies behind a row's last token is hidden by the mask.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from torch import Tensor
from transformers import Cache

COLUMN_STEP = 64  # columns are allocated in such steps: a growth copies the cache once
VIEW_STEP = 16  # what attention reads is rounded up to this, so its views last so many steps (and stay aligned on CUDA)
PIECE_BYTES = 2**18  # of keys and values in one layer: on a CPU, reading them takes as long as one more attention call


class BudgetExceeded(Exception):
    """The cache was asked to hold more than its budget allows."""

    def __init__(self, needed_bytes: int) -> None:
        self.needed_bytes = needed_bytes
        super().__init__(f"{needed_bytes} bytes needed")


@dataclass(frozen=True, slots=True)
class KvLayout:
    """What one token occupies: a key and a value for each head of each layer."""

    layers: int
    heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def token_bytes(self) -> int:
        """Δ of Magnus Eq. (1)."""
        return self.layers * self.heads * (self.key_dim + self.value_dim) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Piece:
    """Neighbouring rows that attention reads together, as far as the longest of them goes."""

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
        self._slots = torch.empty(0, dtype=torch.long)  # where the next forward pass writes
        self._views: list[tuple[Tensor, Tensor]] = []  # what it reads; empty: only what it writes (a prefill)
        self._viewed: tuple[Sequence[int], int] = (), 0
        self.pieces: list[Piece] = []  # of what decoding reads
        self._piece_views: list[list[tuple[Tensor, Tensor]]] = []

    @property
    def nbytes(self) -> int:
        """Bytes held, counted from the tensors themselves."""
        return sum(tensor.untyped_storage().nbytes() for tensor in (*self._keys, *self._values))

    def reserve(self, rows: int, columns: int, keep: tuple[int, int] = (0, 0)) -> bool:
        """Make room for so many rows and columns and say whether tensors moved; BudgetExceeded if they cannot fit.

        `keep` is the (rows, columns) corner whose content survives a move. More than asked is taken where the budget
        has it, so that the next growth is some way off.
        """
        if rows <= self.rows and columns <= self.columns:
            return False
        tokens = self.budget_bytes // self.layout.token_bytes
        if rows * columns > tokens:
            raise BudgetExceeded(rows * columns * self.layout.token_bytes)
        wider, more = self.columns, max(rows, self.rows)
        if columns > self.columns:
            wider = -(-(columns + columns // 4) // COLUMN_STEP) * COLUMN_STEP
        if rows > self.rows > 0:
            more += rows // 2
        wider = max(columns, min(wider, tokens // rows))
        self._move(min(more, tokens // wider), wider, keep)
        return True

    def trim(self, rows: int, columns: int) -> bool:
        """Give memory back once less than a quarter of it is needed; says whether tensors moved."""
        roomy = -(-(columns + columns // 4) // COLUMN_STEP) * COLUMN_STEP
        if 4 * rows * roomy >= self.rows * self.columns:
            return False
        self._move(rows, roomy, (rows, columns))
        return True

    def release(self) -> None:
        """Hold nothing any more."""
        self.rows = self.columns = 0
        self._keys, self._values = [], []
        self._forget_views()

    def write_prefill(self, rows: Sequence[int], length: int) -> None:
        """Aim the next forward pass at the first `length` columns of these rows; it attends to nothing but itself."""
        heads, device = self.layout.heads, self.layout.device
        lanes = torch.tensor(rows, device=device)[:, None] * heads + torch.arange(heads, device=device)
        self._slots = (lanes[..., None] * self.columns + torch.arange(length, device=device)).view(-1)
        self._forget_views()

    def write_decode(self, slots: Tensor, lengths: Sequence[int], width: int) -> int:
        """Aim the next forward pass at `slots`, [rows * heads]; returns the columns it attends to, at least `width`.

        `lengths` are the rows' tokens when the longest had as many as the longest of `lengths`.
        """
        rows, width = len(lengths), min(-(-width // VIEW_STEP) * VIEW_STEP, self.columns)
        self._slots = slots
        if (lengths, width) != self._viewed:
            self._views = self._views_of(Piece(0, rows, width))
            grown = width - max(lengths)
            self.pieces = self._cut([length + grown for length in lengths])
            self._piece_views = [self._views_of(piece) for piece in self.pieces]
            self._viewed = lengths, width
        return width

    def of_pieces(self, layer_idx: int) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of each piece, [rows, heads, columns, dim]."""
        return [views[layer_idx] for views in self._piece_views]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """What each layer's attention calls: [rows, heads, tokens, dim] go in, everything to attend to comes out."""
        self._keys[layer_idx].index_copy_(0, self._slots, key_states.reshape(-1, key_states.shape[-1]))
        self._values[layer_idx].index_copy_(0, self._slots, value_states.reshape(-1, value_states.shape[-1]))
        return self._views[layer_idx] if self._views else (key_states, value_states)

    def copy_row(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of one row over another's."""
        for tensor in (*self._keys, *self._values):
            rows = self._shaped(tensor)
            rows[target, :, :length] = rows[source, :, :length]

    def row_to_host(self, row: int, length: int) -> HostRow:
        """A copy of a row's first `length` tokens in host memory."""
        return [
            (
                self._shaped(keys)[row, :, :length].to("cpu", copy=True),
                self._shaped(values)[row, :, :length].to("cpu", copy=True),
            )
            for keys, values in zip(self._keys, self._values, strict=True)
        ]

    def row_from_host(self, row: int, host: HostRow) -> None:
        """Write a row that `row_to_host` read."""
        for layer, (keys, values) in enumerate(host):
            self._shaped(self._keys[layer])[row, :, : keys.shape[1]] = keys.to(self.layout.device)
            self._shaped(self._values[layer])[row, :, : values.shape[1]] = values.to(self.layout.device)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Nothing is past: positions are always given."""
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """A prefill starts at column 0."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """A prefill attends to itself; decoding brings its own mask and never asks."""
        return query_length, 0

    def _shaped(self, tensor: Tensor) -> Tensor:
        return tensor.view(self.rows, self.layout.heads, self.columns, tensor.shape[-1])

    def _move(self, rows: int, columns: int, keep: tuple[int, int]) -> None:
        """Reallocate layer by layer, so that no more than one layer exists twice at any moment."""
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
                # zeros, not empty: hidden columns are multiplied by 0, which a stray NaN would survive
                fresh = torch.zeros(rows * heads * columns, tensor.shape[-1], dtype=dtype, device=device)
                if kept_rows:
                    source = tensor.view(old[0], heads, old[1], -1)[:kept_rows, :, :kept_columns]
                    fresh.view(rows, heads, columns, -1)[:kept_rows, :, :kept_columns] = source
                tensors[layer] = fresh
        self.rows, self.columns = rows, columns
        self._forget_views()

    def _forget_views(self) -> None:
        self._views, self._viewed = [], ((), 0)
        self.pieces, self._piece_views = [], []

    def _views_of(self, piece: Piece) -> list[tuple[Tensor, Tensor]]:
        start, stop, width = piece.start, piece.stop, piece.width
        return [
            (self._shaped(keys)[start:stop, :, :width], self._shaped(values)[start:stop, :, :width])
            for keys, values in zip(self._keys, self._values, strict=True)
        ]

    def _cut(self, lengths: Sequence[int]) -> list[Piece]:
        """Neighbours, with less hidden in a piece than one more attention call is worth; a single piece on a GPU."""
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
