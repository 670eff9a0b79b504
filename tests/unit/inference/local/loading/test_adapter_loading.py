"""Adapters that do not fit the model are refused when they are loaded, in a line that names the module."""

import pytest
import torch

from inference.engine_errors import UnsupportedModel
from inference.local.forward.adapters import LowRank
from inference.local.loading.adapter_loading import check_fit, load_adapters, side_by_side
from inference.local.loading.model_loading import add_adapters, prepare_model
from inference.model_directory.adapter_files import PREFIX, read_adapter
from tests.unit.inference.model_directory.test_adapter_files import written
from tests.unit.inference.tiny_models import MAKERS, Letters

Q = "model.layers.0.self_attn.q_proj"


def adapter_of(directory, module, inputs, outputs, values=0.5, **config):
    down, up = (torch.linspace(-1, 2, 2 * size) * values for size in (inputs, outputs))
    down, up = down.view(2, inputs), up.view(outputs, 2)
    pair = {f"{PREFIX}{module}.lora_A.weight": down, f"{PREFIX}{module}.lora_B.weight": up}
    return read_adapter(written(directory / "polite", pair, **config))


@pytest.mark.parametrize(
    ("module", "sizes", "why"),
    [
        (Q, (16, 32), "16 inputs and 32 outputs, where the model has 32 and 32; it was trained for llama-9b"),
        (Q, (32, 64), "32 inputs and 64 outputs"),
        ("model.layers.7.self_attn.q_proj", (32, 32), "which the model does not have; it was trained for llama-9b"),
        ("transformer.h.0.attn.c_attn", (32, 96), "which the model does not have"),
        ("model.embed_tokens", (61, 32), "no linear layer"),
        ("lm_head", (32, 61), "the output layer lm_head"),
        ("model.layers.0.input_layernorm", (32, 32), "no linear layer"),
    ],
)
def test_an_adapter_of_another_model_is_refused_by_the_module_that_does_not_fit(tmp_path, module, sizes, why):
    adapter = adapter_of(tmp_path, module, *sizes, base_model_name_or_path="llama-9b")
    with pytest.raises(UnsupportedModel, match=why) as refused:
        check_fit(adapter, MAKERS["llama"]())
    assert str(refused.value).startswith("the adapter polite cannot be served: ")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused(tmp_path, value):
    model = MAKERS["llama"]()
    with pytest.raises(UnsupportedModel, match="no finite numbers"):
        load_adapters(model, model, [adapter_of(tmp_path, Q, 32, 32, value)])


def test_joined_layers_get_the_products_of_each_at_its_own_outputs():
    products = [LowRank(torch.randn(5, rank), torch.randn(rank, outputs)) for rank, outputs in ((2, 3), (1, 4))]
    joined = side_by_side([products[0], None, products[1]], [3, 2, 4])
    x = torch.randn(6, 5)
    parts = [x @ products[0].down @ products[0].up, torch.zeros(6, 2), x @ products[1].down @ products[1].up]
    torch.testing.assert_close(x @ joined.down @ joined.up, torch.cat(parts, 1))


class Transposed(torch.nn.Linear):
    """A layer whose inputs are not sorted by rows: their dimensions are [tokens, rows, inputs]."""

    def __call__(self, x):
        return super().__call__(x.transpose(0, 1).contiguous()).transpose(0, 1)


@pytest.mark.parametrize("by_rows", [True, False])
def test_a_model_that_would_mix_the_rows_of_adapters_is_refused(tmp_path, by_rows):
    torch.manual_seed(4)
    model = MAKERS["neox"]()
    layer = model.gpt_neox.layers[0].mlp
    if not by_rows:
        layer.dense_h_to_4h.__class__ = Transposed
    loaded = prepare_model(model, Letters(), "neox")
    adapter = adapter_of(tmp_path, "gpt_neox.layers.0.mlp.dense_h_to_4h", 32, 64)
    if by_rows:
        assert add_adapters(loaded, [adapter]).adapters.names == {"polite"}
    else:
        with pytest.raises(UnsupportedModel, match="neox cannot be served: with adapters, cached decoding"):
            add_adapters(loaded, [adapter])
