"""Attention of a decoding step on a CPU, in two ways; which one is faster on this CPU is measured when a model loads.

A step multiplies very few queries by many keys. torch's attention kernel leaves bfloat16 products to MKL, whose code is
generic on AMD. Two batched products go through oneDNN instead, with the keys on the left: in that order the scores take
less than half as long. They are rounded to the model's data type in between, as in transformers' eager attention.
"""

from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch
from torch import Tensor
from torch.nn import functional

from inference.local.memory.kv_layout import KvLayout

TRIAL_ROWS, TRIAL_COLUMNS = 16, 256  # a typical decoding step; not tuned
TRIALS = 9  # timings of each, interleaved, for a median that a busy machine does not sway; not tuned
CLEARLY_FASTER = 0.9  # a smaller gain is noise, and both starts of one machine should choose alike; not tuned

# From queries [rows, key heads, queries of a key head, dim], keys and values [rows, key heads, columns, dim] and a mask
# [rows, 1, 1, columns] to [rows, heads * dim].
DecodeAttention = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def by_kernel(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """torch's attention; query heads that share a key head are queries of that head."""
    attended = functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
    return attended.reshape(len(query), -1)


def by_products(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """The scores as one batched product, the weighted values as another."""
    rows, key_heads, queries, dim = query.shape
    by_head = query.reshape(-1, queries, dim)
    scores = torch.bmm(keys.flatten(0, 1), by_head.transpose(1, 2)).transpose(1, 2).contiguous()
    scores = torch.add(mask, scores.view(rows, key_heads, queries, -1), alpha=dim**-0.5)
    return torch.bmm(scores.softmax(-1).flatten(0, 1), values.flatten(0, 1)).view(rows, -1)


@torch.inference_mode()
def fastest_attention(layout: KvLayout, heads: int) -> DecodeAttention:
    """The faster of the two for a model of so many query heads, tried for some milliseconds on a CPU."""
    if layout.device.type != "cpu":
        return by_kernel
    keys, values = (
        torch.randn(TRIAL_ROWS, layout.heads, TRIAL_COLUMNS, dim).to(layout.dtype)
        for dim in (layout.key_dim, layout.value_dim)
    )
    query = torch.randn(TRIAL_ROWS, layout.heads, heads // layout.heads, layout.key_dim).to(layout.dtype)
    mask = torch.zeros(TRIAL_ROWS, 1, 1, TRIAL_COLUMNS, dtype=layout.dtype)
    took_s: dict[DecodeAttention, list[float]] = {by_kernel: [], by_products: []}
    for _ in range(TRIALS):
        for attend, timings in took_s.items():
            started = perf_counter()
            attend(query, keys, values, mask)
            timings.append(perf_counter() - started)
    faster = median(took_s[by_products]) < CLEARLY_FASTER * median(took_s[by_kernel])
    return by_products if faster else by_kernel
