"""The two ways of attention in a decoding step against each other, and the choice between them."""

import pytest
import torch

from inference.local.decode_attention import by_kernel, by_products, fastest_attention
from inference.local.memory.kv_layout import KvLayout

DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("queries", [1, 3])
def test_products_attend_as_the_kernel_does_and_to_no_hidden_column(dtype, queries):
    torch.manual_seed(3)
    rows, key_heads, columns, dim = 4, 2, 24, 16
    query = torch.randn(rows, key_heads, queries, dim).to(dtype)
    cache = torch.randn(2, rows, key_heads, columns + 8, dim).to(dtype)
    keys, values = cache[:, :, :, :columns]  # a view with gaps, as attention reads the cache
    hidden = torch.arange(columns) >= torch.tensor([[24], [1], [7], [16]])
    mask = hidden.to(dtype).mul_(torch.finfo(dtype).min)[:, None, None, :]
    before = by_products(query, keys, values, mask)
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    torch.testing.assert_close(before, by_kernel(query, keys, values, mask), rtol=tolerance, atol=tolerance)
    values.masked_fill_(hidden[:, None, :, None], 1e4)
    assert torch.equal(by_products(query, keys, values, mask), before)


@pytest.mark.parametrize("dtype", DTYPES)
def test_either_may_be_the_faster_one_on_a_cpu(dtype):
    layout = KvLayout(layers=2, heads=2, key_dim=8, value_dim=8, dtype=dtype, device=torch.device("cpu"))
    assert fastest_attention(layout, heads=4) in (by_kernel, by_products)


def test_a_gpu_keeps_its_kernel():
    layout = KvLayout(layers=2, heads=2, key_dim=8, value_dim=8, dtype=torch.float16, device=torch.device("cuda"))
    assert fastest_attention(layout, heads=4) is by_kernel
