"""What a model caches of a token and of a row."""

import pytest
from transformers import MambaConfig, MambaForCausalLM, OpenAIGPTConfig, OpenAIGPTLMHeadModel

from inference.engine_errors import UnsupportedModel
from inference.local.kv.kv_budget import LayerShape
from inference.local.loading.cache_layout import served_layout
from tests.models.tiny_families import Family, tiny_model
from tests.unit.inference.tiny_models import VOCABULARY


def test_states_are_counted_for_each_row_beside_the_tokens():
    model = MambaForCausalLM(MambaConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, state_size=4))
    layout = served_layout(model, "mamba")[0]
    inner, kernel = 64, 4
    assert layout.state_bytes == 2 * inner * (kernel + 4) * 4  # layers, inputs of the convolution and states, bytes
    assert (layout.token_bytes, layout.row_bytes(9)) == (1, 9)
    assert layout.divided(9 * layout.state_bytes) == (5 * layout.state_bytes, 4)


def test_a_cache_of_another_kind_is_refused():
    model = OpenAIGPTLMHeadModel(OpenAIGPTConfig(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4))
    with pytest.raises(UnsupportedModel, match=r"its layer 0 caches no keys and values; .* vLLM: magnus up --engine"):
        served_layout(model, "gpt")


def test_layers_may_differ_in_their_heads():
    layout, _ = served_layout(tiny_model(Family("MiMo-V2", "mimo_v2_flash")), "mimo")
    assert set(layout.shapes) == {LayerShape(2, 8, 8), LayerShape(4, 8, 8)}


def test_indexers_have_caches_of_keys_behind_those_of_the_layers():
    indexed = {"num_key_value_heads": 4, "index_head_dim": 16, "num_hidden_layers": 2}
    layout, _ = served_layout(tiny_model(Family("DeepSeek-V3.2", "deepseek_v32", indexed)), "deepseek")
    latent = LayerShape(heads=1, key_dim=16, value_dim=8)  # its rank, and the part that rotation turns
    assert layout.shapes == (latent, latent, LayerShape(heads=1, key_dim=16), LayerShape(heads=1, key_dim=16))
    assert layout.indexers == {0: 2, 1: 3}
    assert layout.token_bytes == 2 * (16 + 8 + 16) * 4
