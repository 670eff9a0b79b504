"""Attention of a decoding step over rows whose tokens are in blocks, in plain tensor operations.

A row's query meets each of its blocks in one batched product over all blocks of all rows. So the keys and values are
read where they are, once, and none that belong to no row but for a block's end. Only scores and weights, which are far
smaller, are moved: into a rectangle for the softmax, and back.
"""

import torch
from torch import Tensor
from torch.nn import functional

from inference.local.memory.block_tables import BlockIndex


def by_blocks(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, index: BlockIndex) -> Tensor:
    """Queries [rows, key heads, queries of a key head, dim] to [rows, heads * dim].

    Keys and values are [blocks, key heads, block tokens, dim], the mask [rows, 1, 1, most * block tokens]. A row that
    has NaN keeps it to itself.
    """
    rows, key_heads, queries, dim = query.shape
    blocks, _, tokens, _ = keys.shape
    heads = key_heads * queries
    of_block = query.reshape(rows, -1).index_select(0, index.row_of).view(blocks * key_heads, queries, dim)
    scores = torch.bmm(of_block, keys.flatten(0, 1).transpose(1, 2)).view(blocks, -1)
    scores = scores.index_select(0, index.block_at).view(rows, -1, heads, tokens).transpose(1, 2)
    weights = torch.add(mask, scores.reshape(rows, key_heads, queries, -1), alpha=dim**-0.5).softmax(-1)
    weights = weights.view(rows, heads, -1, tokens).transpose(1, 2).reshape(len(index.block_at), -1)
    weights = weights.index_select(0, index.place_of).view(blocks * key_heads, queries, tokens)
    attended = torch.bmm(weights, values.flatten(0, 1)).view(blocks, -1)
    return functional.embedding_bag(index.by_row, attended, index.starts, mode="sum")
