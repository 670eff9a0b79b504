"""Packed and plain weights against each other, and the choice of a form."""

import pytest
import torch

from inference.local.forward.linear_weights import PackedWeight, PlainWeight, fastest_form


@pytest.mark.parametrize("bias", [None, torch.arange(6.0)])
@pytest.mark.parametrize("tokens", [1, 5, 70])
def test_packed_and_plain_weights_multiply_alike(bias, tokens):
    torch.manual_seed(3)
    weight, x, residual = torch.randn(6, 10), torch.randn(tokens, 10), torch.randn(tokens, 6)
    plain, packed = PlainWeight(weight, bias), PackedWeight(weight, bias)
    torch.testing.assert_close(packed(x), plain(x), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(packed.add_to(residual, x), plain.add_to(residual, x), rtol=1e-5, atol=1e-5)


def test_a_small_weight_or_one_that_may_not_be_packed_stays_plain():
    assert fastest_form(torch.randn(8, 8), packable=True) != "packed"
    assert fastest_form(torch.randn(1024, 512), packable=False) != "packed"


def test_a_data_type_that_cannot_be_packed_stays_plain():
    assert fastest_form(torch.randn(1024, 512).to(torch.float64), packable=True) != "packed"
