"""Attention of a decoding step, which multiplies few queries by many keys: one way for blocks, three for rectangles.

`by_blocks` multiplies the query of each row by all blocks of the row, in one batched product over all rows, so that
keys and values are not copied. It copies only scores and weights, which are far smaller, to a rectangle for the softmax
and back. Blocks of a prefix that several rows share are multiplied by the queries of all of them. `by_groups` calls
`by_blocks` for each group of similar rows.

The fastest way for a rectangle is measured on each CPU when a model loads:

- `by_kernel` is torch's attention. It leaves bfloat16 products to MKL, whose code is generic on AMD.
- `by_products` makes two batched products in oneDNN. The scores take less than half as long with the keys on the left.
  Scores are rounded to the model's data type before the softmax, as in transformers' eager attention.
- `by_bags` avoids the copies that `by_products` makes in bfloat16: torch copies the columns for oneDNN unless they are
  whole blocks of the cache, and oneDNN packs the values of each head. So it reads whole blocks, ignores the scores of
  hidden columns, and sums the values with `embedding_bag`.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial

import torch
from torch import Tensor
from torch.nn import functional

from inference.local.forward.linear_weights import medians_s
from inference.local.kv.block_tables import BlockIndex
from inference.local.kv.kv_budget import KvLayout
from inference.local.kv.query_groups import QueryGroup, QueryGroups

TRIAL_ROWS, TRIAL_COLUMNS, TRIAL_WIDTH = 16, 256, 224  # a typical decoding step; not tuned
TRIALS = 9  # each way is timed this often, in turns; the median resists the load of other processes; not tuned
CLEARLY_FASTER = 0.9  # a smaller gain may be noise, and every start should choose the same way; not tuned
# Number of shapes whose bags are cached; each takes 0.2 % of the memory of SmolLM2's keys and values. A batch of mixed
# lengths is mostly read in fewer pieces; not tuned.
KEPT_BAGS = 32

# A function of queries [rows, key heads, queries of a key head, dim], keys and values [rows, key heads, width, dim] and
# a mask [rows, 1, 1, width]; it returns [rows, heads * dim]. Keys and values view the first `width` columns of
# neighbouring blocks, [blocks, key heads, columns, dim].
DecodeAttention = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def by_kernel(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Computes torch's attention; query heads that share a key head are queries of that head."""
    attended = functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
    return attended.reshape(len(query), -1)


def by_products(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Computes the scores in one batched product and the weighted values in another."""
    rows, key_heads, queries, dim = query.shape
    scores = _scores_of_columns(query.reshape(-1, queries, dim), keys)
    scores = torch.add(mask, scores.view(rows, key_heads, queries, -1), alpha=dim**-0.5)
    return torch.bmm(scores.softmax(-1).flatten(0, 1), values.flatten(0, 1)).view(rows, -1)


def by_bags(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, whole_until: float = 1) -> Tensor:
    """Computes values by `embedding_bag`, and scores by whole blocks of at most `whole_until` * width columns."""
    rows, key_heads, queries, dim = query.shape
    columns, width = keys.stride(1) // dim, keys.shape[2]
    by_head = query.reshape(-1, queries, dim)
    is_whole = columns <= whole_until * width
    scores = _scores_of_blocks(by_head, keys)[..., :width] if is_whole else _scores_of_columns(by_head, keys)
    scores = torch.add(mask, scores.view(rows, key_heads, queries, width), alpha=dim**-0.5)
    table = values.as_strided((rows * key_heads * columns, values.shape[-1]), (values.shape[-1], 1))
    places, starts = _bags(rows * key_heads, queries, columns, width)
    weights = scores.softmax(-1).view(-1)
    return functional.embedding_bag(places, table, starts, mode="sum", per_sample_weights=weights).view(rows, -1)


def _scores_of_columns(by_head: Tensor, keys: Tensor) -> Tensor:
    """Multiplies queries [rows * key heads, queries, dim] by keys; returns [rows * key heads, queries, width]."""
    return torch.bmm(keys.flatten(0, 1), by_head.transpose(1, 2)).transpose(1, 2).contiguous()


def _scores_of_blocks(by_head: Tensor, keys: Tensor) -> Tensor:
    """Multiplies queries by the keys of all columns, without a copy; returns [rows * key heads, queries, columns]."""
    of_head, dim = keys.stride(1), keys.shape[-1]
    blocks = keys.as_strided((len(by_head), dim, of_head // dim), (of_head, 1, dim))
    return torch.bmm(by_head, blocks)


@lru_cache(maxsize=KEPT_BAGS)
def _bags(heads: int, queries: int, columns: int, width: int) -> tuple[Tensor, Tensor]:
    """Returns the indices of the values in each bag, and the start of each bag; a bag is one query of one key head."""
    first = torch.arange(0, heads * columns, columns, dtype=torch.int32)[:, None, None]
    places = (first + torch.arange(width, dtype=torch.int32)).expand(-1, queries, -1).reshape(-1)
    return places, torch.arange(0, len(places), width, dtype=torch.int32)


@torch.inference_mode()
def fastest_attention(layout: KvLayout, heads: int) -> DecodeAttention:
    """Measures the three ways on a CPU and returns the fastest for a model with `heads` query heads."""
    if layout.device.type != "cpu":
        return by_kernel
    of_layer = layout.shapes[0]
    keys, values = (
        torch.randn(TRIAL_ROWS, of_layer.heads, TRIAL_COLUMNS, dim).to(layout.dtype)[:, :, :TRIAL_WIDTH]
        for dim in (of_layer.key_dim, of_layer.value_dim)
    )
    query = torch.randn(TRIAL_ROWS, of_layer.heads, heads // of_layer.heads, of_layer.key_dim).to(layout.dtype)
    mask = torch.zeros(TRIAL_ROWS, 1, 1, TRIAL_WIDTH, dtype=layout.dtype)
    by_head = query.flatten(0, 1)
    ways_of_scores = [partial(one, by_head, keys) for one in (_scores_of_columns, _scores_of_blocks)]
    columns_s, blocks_s = medians_s(ways_of_scores, TRIALS)
    ways: list[DecodeAttention] = [
        by_kernel,
        by_products,
        partial(by_bags, whole_until=columns_s / TRIAL_WIDTH / (blocks_s / TRIAL_COLUMNS)),
    ]
    took_s = medians_s([partial(attend, query, keys, values, mask) for attend in ways], TRIALS)
    fastest = took_s.index(min(took_s))
    return ways[fastest] if took_s[fastest] < CLEARLY_FASTER * took_s[0] else by_kernel


def by_blocks(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, index: BlockIndex) -> Tensor:
    """Returns attention [rows, heads * dim] for queries [rows, key heads, queries of a key head, dim].

    Keys and values are [blocks, key heads, block tokens, dim]; the mask is [rows, 1, 1 or queries, columns], with as
    many columns as the row of most blocks has. NaN in one row does not reach other rows.
    """
    rows, key_heads, queries, dim = query.shape
    blocks, _, tokens, _ = keys.shape
    heads, by_row, shared = key_heads * queries, query.reshape(rows, -1), index.shared
    of_block = by_row.index_select(0, index.row_of).view(blocks * key_heads, queries, dim)
    scores = torch.bmm(of_block, keys.flatten(0, 1).transpose(1, 2)).view(blocks, -1)
    if shared is not None:
        of_shared = by_row.index_select(0, shared.row_of)
        scores = torch.cat([scores, _times_shared(of_shared, keys.index_select(0, shared.block_of).transpose(2, 3))])
    scores = scores.index_select(0, index.block_at).view(rows, -1, heads, tokens).transpose(1, 2)
    weights = torch.add(mask, scores.reshape(rows, key_heads, queries, -1), alpha=dim**-0.5).softmax(-1)
    weights = weights.view(rows, heads, -1, tokens).transpose(1, 2).reshape(len(index.block_at), -1)
    weights = weights.index_select(0, index.place_of)
    attended = torch.bmm(weights[:blocks].view(blocks * key_heads, queries, tokens), values.flatten(0, 1))
    attended = attended.view(blocks, -1)
    if shared is not None:
        attended = torch.cat([attended, _times_shared(weights[blocks:], values.index_select(0, shared.block_of))])
    return functional.embedding_bag(index.by_row, attended, index.starts, mode="sum")


def _times_shared(of_readers: Tensor, matrices: Tensor) -> Tensor:
    """Multiplies readers' values, [entries * readers, heads * m], by matrices [entries, key heads, m, n]."""
    entries, key_heads, m, _ = matrices.shape
    readers = len(of_readers) // entries
    by_head = of_readers.view(entries, readers, key_heads, -1).transpose(1, 2).reshape(entries, key_heads, -1, m)
    product = torch.matmul(by_head, matrices).view(entries, key_heads, readers, -1)
    return product.transpose(1, 2).reshape(len(of_readers), -1)


def by_groups(query: Tensor, keys: Tensor, values: Tensor, groups: QueryGroups, masks: Sequence[Tensor]) -> Tensor:
    """Returns attention [tokens, heads * dim] for a pass's queries [tokens, key heads, queries of a key head, dim].

    `masks` has one for each group. A row's tokens become queries of its key heads, so that each block is read once.
    """
    if groups.places is None:
        (group,) = groups.groups
        return by_blocks(query, keys[: group.index.blocks], values[: group.index.blocks], masks[0], group.index)
    attended = [_of_group(query, keys, values, *each) for each in zip(groups.groups, masks, strict=True)]
    return torch.cat(attended).index_select(0, groups.places)


def _of_group(query: Tensor, keys: Tensor, values: Tensor, group: QueryGroup, mask: Tensor) -> Tensor:
    """Returns the attention of one group's tokens, [places, heads * dim]."""
    _, key_heads, shared, dim = query.shape
    at_places = query.index_select(0, group.tokens).view(-1, group.queries, key_heads, shared, dim)
    of_rows = at_places.transpose(1, 2).reshape(-1, key_heads, group.queries * shared, dim)
    if group.blocks is None:
        keys, values = keys[: group.index.blocks], values[: group.index.blocks]
    else:
        keys, values = keys.index_select(0, group.blocks), values.index_select(0, group.blocks)
    attended = by_blocks(of_rows, keys, values, mask, group.index).view(len(mask), key_heads, group.queries, -1)
    return attended.transpose(1, 2).reshape(len(group.tokens), -1)
