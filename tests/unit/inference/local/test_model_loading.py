"""Models from a directory; those that would be served wrongly are refused in words that an operator understands."""

from dataclasses import replace

import pytest
import torch
from transformers import BloomConfig, BloomForCausalLM, MistralConfig, MistralForCausalLM

from inference.engine_errors import UnsupportedModel
from inference.local.engine import Engine
from inference.local.model_loading import prepare_model
from inference.sequences import Sequence
from tests.unit.inference.tiny_models import EOS, POSITIONS, SHAPE, VOCABULARY, Letters


def mistral(**options):
    return MistralForCausalLM(
        MistralConfig(
            **SHAPE,
            num_key_value_heads=1,
            **options,
        )
    )


def test_what_the_model_says_of_itself_is_known(llama):
    loaded = llama.loaded
    assert loaded.eos_ids == {EOS}
    assert loaded.pad_id == 0
    assert loaded.max_positions == POSITIONS
    assert loaded.delta_bytes == 2 * 2 * 2 * 8 * 4  # layers, keys and values, heads, dim, bytes
    assert loaded.weight_bytes >= sum(weight.nbytes for weight in loaded.model.parameters())


def test_full_attention_is_served_and_a_sliding_window_refused():
    assert prepare_model(mistral(sliding_window=None), Letters(), "full").layout.heads == 1
    with pytest.raises(UnsupportedModel, match="only full attention in every layer is served"):
        prepare_model(mistral(sliding_window=64), Letters(), "sliding")


def test_a_model_that_reads_positions_from_the_mask_is_refused():
    model = BloomForCausalLM(BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4))
    with pytest.raises(UnsupportedModel):
        prepare_model(model, Letters(), "alibi")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_served_in_half_the_memory(dtype, llama):
    model = mistral(sliding_window=None).to(dtype)
    loaded = replace(prepare_model(model, Letters(), "half"), eos_ids=frozenset())
    assert loaded.layout.dtype == dtype
    assert loaded.delta_bytes == 2 * 2 * 1 * 8 * 2
    results, _ = Engine(loaded, 2**20).run([Sequence("a", (9, 10, 11), 8), Sequence("b", (12,), 8)])
    assert [len(row.generated_ids) for row in results] == [8, 8]
