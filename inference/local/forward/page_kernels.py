"""The kernels of a decoding step on a GPU: one writes new keys and values to pages, others attend to pages in place.

A page is a block of the KV cache, or a row of a rectangle. The kernels look pages up in a table. So no keys or values
are copied, and no column without a token is read. Tokens of a joiner's prompt attend in tiles, for each of which the
row's keys and values are read once. One launch can be repeated for rows of any lengths, so that a whole pass can be
recorded as one graph. With torch's own operations, attention to blocks took fifteen launches a layer.

Triton, which comes with torch for GPUs, compiles them; its interpreter computes them on a CPU, for tests.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from inference.local.kv.pages import TILE_TOKENS, Pages

TILE = 64  # tokens of a row that are read at once; not tuned
SMALLEST_PRODUCT = 16  # Triton multiplies only matrices of at least this many rows
# The most rows of a product, the queries of a tile's tokens, in half precision and in float32: more take too many
# registers, and in float32 compiling them takes half a minute.
MOST_ROWS, MOST_ROWS_OF_FLOATS = 64, 16
# This many programs occupy a GPU. If a pass has fewer, each row is read in several parts. Not tuned.
PROGRAMS = 256
MOST_PARTS = 16
LOWEST = tl.constexpr(-1e30)  # below any score, and finite: the difference of two of them is 0, not NaN


@triton.jit
def _write_kernel(
    qkv,
    cos,
    sin,
    queries,
    keys,
    values,
    table,
    sizes,
    positions,
    most,
    heads,
    key_heads,
    DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
):
    token, head = tl.program_id(0), tl.program_id(1)
    position = tl.load(positions + token)
    if position >= 0:
        at = tl.arange(0, PADDED_DIM)
        inside = at < DIM
        source = qkv + (token * (heads + 2 * key_heads) + head) * DIM
        state = tl.load(source + at, inside, 0.0)
        if head < heads + key_heads:
            turned = tl.load(source + (at + DIM // 2) % DIM, inside, 0.0).to(tl.float32)
            by_cos = state.to(tl.float32) * tl.load(cos + token * DIM + at, inside, 0.0).to(tl.float32)
            state = (by_cos + turned * tl.load(sin + token * DIM + at, inside, 0.0).to(tl.float32)).to(state.dtype)
        if head < heads:
            tl.store(queries + (token * heads + head) * DIM + at, state, inside)
        else:
            size = tl.load(sizes + token)
            page = tl.load(table + token * most + position // size).to(tl.int64)
            slot = (page * key_heads + (head - heads) % key_heads) * size + position % size
            if head < heads + key_heads:
                tl.store(keys + slot * DIM + at, state, inside)
            else:
                tl.store(values + slot * DIM + at, state, inside)


@triton.jit
def _attend_kernel(
    queries,
    keys,
    values,
    attended,
    parts,
    sums,
    table,
    sizes,
    positions,
    tiles,
    most,
    scale,
    TOKENS: tl.constexpr,
    TILES: tl.constexpr,
    QUERIES: tl.constexpr,
    PADDED_QUERIES: tl.constexpr,
    DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    TILE: tl.constexpr,
    WHOLE: tl.constexpr,
):
    begun, head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    key_heads, most_parts = tl.num_programs(1), tl.num_programs(2)
    own, at = tl.arange(0, PADDED_QUERIES), tl.arange(0, PADDED_DIM)
    is_own = own < TOKENS * QUERIES
    if TILES > 0:  # a tile is computed by TILES programs, of TOKENS tokens each
        tile, skipped = begun // TILES, begun % TILES * TOKENS
        begun = tl.load(tiles + 2 * tile) + skipped
        is_own = is_own & (own < (tl.load(tiles + 2 * tile + 1) - skipped) * QUERIES)
    token = begun + own // QUERIES
    position = tl.load(positions + token, is_own, -1).to(tl.int32)
    length = tl.max(position, 0) + 1
    size = tl.load(sizes + begun, length > 0, 1)
    tokens_of_part = tl.cdiv(tl.cdiv(length, most_parts), TILE) * TILE
    begin = part * tokens_of_part
    end = tl.minimum(begin + tokens_of_part, length)
    of_head = (token * key_heads + head) * QUERIES + own % QUERIES
    is_query = is_own[:, None] & (at < DIM)[None, :]
    query = tl.load(queries + of_head[:, None] * DIM + at[None, :], is_query, 0.0)
    highest = tl.full([PADDED_QUERIES], LOWEST, tl.float32)
    total = tl.zeros([PADDED_QUERIES], tl.float32)
    found = tl.zeros([PADDED_QUERIES, PADDED_DIM], tl.float32)
    for first in range(begin, end, TILE):
        columns = first + tl.arange(0, TILE)
        is_token = columns < end
        page = tl.load(table + begun * most + columns // size, is_token, 0).to(tl.int64)
        slots = (page * key_heads + head) * size + columns % size
        key = tl.load(keys + slots[None, :] * DIM + at[:, None], is_token[None, :] & (at < DIM)[:, None], 0.0)
        scores = tl.dot(query, key, input_precision="ieee") * scale
        is_seen = is_token[None, :] & (columns[None, :] <= position[:, None])
        scores = tl.where(is_seen, scores, LOWEST)
        higher = tl.maximum(highest, tl.max(scores, 1))
        weights, kept = tl.where(is_seen, tl.exp(scores - higher[:, None]), 0.0), tl.exp(highest - higher)
        value = tl.load(values + slots[:, None] * DIM + at[None, :], is_token[:, None] & (at < DIM)[None, :], 0.0)
        found = found * kept[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        total = total * kept + tl.sum(weights, 1)
        highest = higher
    if WHOLE:
        found = found / tl.where(total > 0, total, 1.0)[:, None]
        tl.store(attended + of_head[:, None] * DIM + at[None, :], found.to(query.dtype), is_query)
    else:
        place = of_head * most_parts + part
        tl.store(parts + place[:, None] * DIM + at[None, :], found, is_query)
        tl.store(sums + 2 * place, highest, is_own)
        tl.store(sums + 2 * place + 1, total, is_own)


@triton.jit
def _join_kernel(parts, sums, attended, DIM: tl.constexpr, PADDED_DIM: tl.constexpr, PARTS: tl.constexpr):
    head = tl.program_id(0)
    each, at = tl.arange(0, PARTS), tl.arange(0, PADDED_DIM)
    highest = tl.load(sums + 2 * (head * PARTS + each))
    total = tl.load(sums + 2 * (head * PARTS + each) + 1)
    weights = tl.where(total > 0, tl.exp(highest - tl.max(highest, 0)), 0.0)
    whole = tl.sum(weights * total, 0)
    found = tl.load(parts + (head * PARTS + each)[:, None] * DIM + at[None, :], (at < DIM)[None, :], 0.0)
    found = tl.sum(found * weights[:, None], 0) / tl.where(whole > 0, whole, 1.0)
    tl.store(attended + head * DIM + at, found.to(attended.dtype.element_ty), at < DIM)


class TritonKernels:
    """The kernels as `PageKernels`."""

    def write(
        self, states: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, pages: Pages, positions: Tensor
    ) -> Tensor:
        """Rotates queries and keys, and writes keys and values to their pages; returns the queries."""
        tokens, of_token, dim = states.shape
        heads, most = of_token - 2 * pages.heads, pages.table.shape[1]
        queries = states.new_empty(tokens, heads, dim)
        _write_kernel[tokens, of_token](
            states,
            cos,
            sin,
            queries,
            keys,
            values,
            pages.table,
            pages.sizes,
            positions,
            most,
            heads,
            pages.heads,
            DIM=dim,
            PADDED_DIM=triton.next_power_of_2(dim),
            num_warps=1,
        )
        return queries

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, pages: Pages, positions: Tensor) -> Tensor:
        """Returns the attention, [tokens, heads * dim], of each token to its row up to its own position."""
        tokens, heads, dim = queries.shape
        of_key_head, most = heads // pages.heads, pages.table.shape[1]
        together, tiles, begun = 1, 0, tokens  # tokens of a program, programs of a tile, programs
        if pages.tiles is not None:
            rows = MOST_ROWS_OF_FLOATS if queries.dtype == torch.float32 else MOST_ROWS
            together = min(TILE_TOKENS, max(1, rows // triton.next_power_of_2(of_key_head)))
            tiles = TILE_TOKENS // together
            begun = len(pages.tiles) * tiles
        count = min(MOST_PARTS, triton.next_power_of_2(max(1, PROGRAMS // (begun * pages.heads))))
        attended = torch.empty_like(queries)
        parts, sums = attended, attended
        if count > 1:
            parts = queries.new_empty(tokens, heads, count, dim, dtype=torch.float32)
            sums = queries.new_empty(tokens, heads, count, 2, dtype=torch.float32)
        shape: dict[str, Any] = {"DIM": dim, "PADDED_DIM": triton.next_power_of_2(dim)}
        _attend_kernel[begun, pages.heads, count](
            queries,
            keys,
            values,
            attended,
            parts,
            sums,
            pages.table,
            pages.sizes,
            positions,
            pages.table if pages.tiles is None else pages.tiles,
            most,
            dim**-0.5,
            TOKENS=together,
            TILES=tiles,
            QUERIES=of_key_head,
            PADDED_QUERIES=max(SMALLEST_PRODUCT, triton.next_power_of_2(together * of_key_head)),
            TILE=TILE,
            WHOLE=count == 1,  # the number of parts is no constant, because each would be compiled
            **shape,
        )
        if count > 1:
            _join_kernel[(tokens * heads,)](parts, sums, attended, PARTS=count, **shape)
        return attended.view(tokens, -1)
