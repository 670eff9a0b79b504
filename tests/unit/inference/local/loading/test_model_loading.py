"""Models from a directory; those that would be served wrongly are refused in words that an operator understands."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from transformers import Gemma4Config, GenerationConfig, MistralConfig, MistralForCausalLM

from inference.engine_requests import DecodingRequest
from inference.local.engine import Engine
from inference.local.kv.attention_windows import Window
from inference.local.loading.model_loading import end_ids, lacking_kernels, prepare_model
from tests.unit.inference.tiny_models import EOS, POSITIONS, SHAPE, Letters


def mistral(**options):
    return MistralForCausalLM(MistralConfig(**SHAPE, num_key_value_heads=1, **options))


def test_what_the_model_says_of_itself_is_known(llama):
    loaded = llama.loaded
    assert loaded.eos_ids == {EOS}
    assert loaded.pad_id == 0
    assert loaded.max_positions == POSITIONS
    assert loaded.delta_bytes == 2 * 2 * 2 * 8 * 4  # layers, keys and values, heads, dim, bytes
    assert loaded.weight_bytes >= sum(weight.nbytes for weight in loaded.model.parameters())


@pytest.mark.parametrize(
    ("generation", "ends"), [(GenerationConfig(eos_token_id=[5, 6]), {5, 6}), (GenerationConfig(), {9})]
)
def test_a_model_of_several_media_ends_where_the_part_for_text_says(generation, ends):
    config = Gemma4Config(text_config={"eos_token_id": 9})
    assert end_ids(SimpleNamespace(generation_config=generation, config=config)) == ends


def test_a_window_of_all_positions_is_none():
    assert prepare_model(mistral(sliding_window=POSITIONS), Letters(), "wide").layout.windows == {}
    assert prepare_model(mistral(sliding_window=64), Letters(), "sliding").layout.windows == {
        "sliding_attention": Window(64)
    }


def test_what_keeps_a_gpu_from_its_own_kernels_is_said(llama):
    sliding = prepare_model(mistral(sliding_window=64), Letters(), "sliding").layout
    assert "windows" in lacking_kernels(True, sliding)
    assert "transformers" in lacking_kernels(False, llama.loaded.layout)
    assert lacking_kernels(True, llama.loaded.layout) in ("", "without kernels: Triton is not installed")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_served_in_half_the_memory(dtype, llama):
    model = mistral(sliding_window=None).to(dtype)
    loaded = replace(prepare_model(model, Letters(), "half"), eos_ids=frozenset())
    assert loaded.layout.dtype == dtype
    assert loaded.delta_bytes == 2 * 2 * 1 * 8 * 2
    results, _ = Engine(loaded, 2**20).run([DecodingRequest("a", (9, 10, 11), 8), DecodingRequest("b", (12,), 8)])
    assert [len(row.generated_ids) for row in results] == [8, 8]
