"""Attention of one forward pass by how its rows lie in the cache: whole, in pieces of a rectangle, in blocks, in pages.

Each way writes a layer's keys and values to the cache, and attends with the layer's queries to the rows' keys.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right

from inference.accelerator import attends_in_groups, has_own_memory
from inference.local.forward.decode_attention import DecodeAttention, by_groups
from inference.local.kv.attention_windows import Windows
from inference.local.kv.pages import PageKernels, Pages
from inference.local.kv.query_groups import QueryGroups

lower_right = lru_cache(maxsize=1)(causal_lower_right)  # the same for each layer of a pass


class HeadShape(NamedTuple):
    """The heads of a model's attention, and the dimension of each."""

    heads: int
    key_heads: int
    dim: int


# Returns a layer's attention, [tokens, heads * dim], by its number, its kind as in `Windows`, and its queries, keys and
# values, [tokens, heads + 2 key heads, dim], which are not rotated yet.
RowAttention = Callable[[int, str, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class PagedAttention:
    """Attends to pages of the cache in place, with a device's kernels."""

    kernels: PageKernels
    kv: Any
    pages: Pages
    cos: Tensor
    sin: Tensor
    positions: Tensor

    def __call__(self, layer: int, kind: str, states: Tensor) -> Tensor:
        """Returns a layer's attention."""
        keys, values = self.kv.of_layer(layer)
        queries = self.kernels.write(states, self.cos, self.sin, keys, values, self.pages, self.positions)
        return self.kernels.attend(queries, keys, values, self.pages, self.positions)


class CachedAttention:
    """Attends to a layer's keys and values in the cache, in the pieces or groups of rows that the cache states."""

    def __init__(
        self, kv: Any, shape: HeadShape, tokens: torch.Size, cos: Tensor, sin: Tensor, attend_one: DecodeAttention
    ) -> None:
        """The pass computes [rows, length] tokens; `attend_one` attends with one token of each row."""
        self._kv, self._shape, self._tokens, self._attend_one = kv, shape, tokens, attend_one
        self._cos, self._sin = cos.unsqueeze(2), sin.unsqueeze(2)
        self._ways: dict[str, Callable[[int, Tensor, Tensor, Tensor], Tensor]] = {}

    def masked(self, mask: Tensor | dict[str, Tensor] | None, windows: Windows) -> "CachedAttention":
        """Returns itself with the pass's masks: one for all layers, or one for each kind; a prefill may have none."""
        masks: Mapping[str, Tensor | None] = mask if isinstance(mask, dict) else dict.fromkeys(windows, mask)
        if mask is None:
            length, device = self._tokens[1], self._cos.device
            masks = {
                kind: None if window is None or length <= window.tokens else window.prefill_mask(length, device)
                for kind, window in windows.items()
            }
        self._ways = {kind: self._way(mask) for kind, mask in masks.items()}
        return self

    def __call__(self, layer: int, kind: str, states: Tensor) -> Tensor:
        """Returns a layer's attention."""
        heads, key_heads, dim = self._shape
        qk, value = torch.split(states, [heads + key_heads, key_heads], 1)
        qk = qk.view(*self._tokens, -1, dim)
        qk = torch.addcmul(qk * self._cos, qk.roll(dim // 2, -1), self._sin)
        query, key = torch.split(qk, [heads, key_heads], 2)
        value = value.view(*self._tokens, key_heads, dim)
        keys, values = self._kv.update(key.transpose(1, 2), value.transpose(1, 2), layer)
        return self._ways[kind](layer, query, keys, values)

    def _way(self, mask: Tensor | None) -> Callable[[int, Tensor, Tensor, Tensor], Tensor]:
        pieces, groups = self._kv.pieces, self._kv.query_groups
        if mask is None or (groups is None and len(pieces) < 2):
            return partial(self._whole, mask)
        if groups is not None:
            return partial(self._in_groups, groups, groups.masks(mask, self._shape.heads // self._shape.key_heads))
        rows = [slice(piece.start, piece.stop) for piece in pieces]
        parts = [mask[of_piece, ..., : piece.width] for of_piece, piece in zip(rows, pieces, strict=True)]
        return partial(self._in_pieces, [*zip(rows, parts, strict=True)])

    def _in_pieces(self, pieces: list[tuple[slice, Tensor]], layer: int, query: Tensor, *_: Tensor) -> Tensor:
        read = zip(pieces, self._kv.piece_views(layer), strict=True)
        return torch.cat([self._whole(mask, layer, query[rows], *sides) for (rows, mask), sides in read])

    def _in_groups(
        self, groups: QueryGroups, masks: list[Tensor], layer: int, query: Tensor, keys: Tensor, values: Tensor
    ) -> Tensor:
        grouped = query.reshape(self._tokens[0], self._shape.key_heads, -1, self._shape.dim)
        return by_groups(grouped, keys, values, groups, masks)

    def _whole(self, mask: Tensor | None, layer: int, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attends with a query [rows, length, heads, dim] to keys and values [rows, key heads, columns, dim]."""
        rows, length = query.shape[:2]
        heads, key_heads, dim = self._shape
        if length == 1 and mask is not None:  # query heads that share a key head become queries of that head
            return self._attend_one(query.view(rows, key_heads, -1, dim), keys, values, mask)
        query, before, causal = query.transpose(1, 2), keys.shape[2] - length, mask is None
        in_groups = causal and attends_in_groups(query, keys, values)
        if heads > key_heads and not in_groups:
            keys, values = (side.repeat_interleave(heads // key_heads, 1) for side in (keys, values))
        if causal and before and has_own_memory(query.device):
            mask, causal = lower_right(length, before + length), False
        elif causal and before:  # torch's causal mask needs as many queries as keys
            query = functional.pad(query, (0, 0, before, 0))
        attended = functional.scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, is_causal=causal, enable_gqa=in_groups
        )
        return attended[:, :, -length:].transpose(1, 2).reshape(rows * length, -1)
