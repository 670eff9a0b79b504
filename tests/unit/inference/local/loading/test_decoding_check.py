"""What is checked before serving: rows beyond every window or threshold beside short ones."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from inference.engine_errors import UnsupportedModel
from inference.local.loading.architecture_faults import architecture_fault
from inference.local.loading.decoding_check import PAST, SHORT, checked_batches, unless_memory_lacks
from inference.local.loading.model_loading import prepare_model
from tests.models.tiny_families import Family, tiny_model
from tests.unit.inference.tiny_models import SHAPE, Letters


def llama(**options):
    torch.manual_seed(11)
    return LlamaForCausalLM(LlamaConfig(**SHAPE, initializer_range=0.4, **options))


def test_a_row_beyond_each_threshold_is_checked_beside_a_short_one():
    model = llama(first_window=20, rows_chunk=40)
    assert [[len(prompt) for prompt in batch] for batch in checked_batches(model, 128)] == [
        [*SHORT],
        [SHORT[0], 20 + PAST],
        [SHORT[0], 40 + PAST],
    ]
    assert len(checked_batches(model, 42)) == 2


def test_rows_that_depend_on_their_neighbours_are_refused():
    with pytest.raises(UnsupportedModel, match="by the length of the batch's longest row; another server"):
        prepare_model(tiny_model(Family("Doge", "doge")), Letters(), "doge")
    assert architecture_fault(tiny_model(Family("Doge", "doge", {"keep_window_size": 128})), 128) == ""


def test_a_dependence_that_no_rule_knows_is_found_by_the_check():
    model = llama(first_window=20)
    rotation = model.model.rotary_emb.forward

    def by_the_longest_row(x, position_ids):
        scale = 0.5 if position_ids.max() >= 20 else 1
        cos, sin = rotation(x, position_ids=position_ids)
        return cos * scale, sin * scale

    model.model.rotary_emb.forward = by_the_longest_row
    with pytest.raises(UnsupportedModel, match="a row of 3 tokens beside one of 23 differs from its own"):
        prepare_model(model, Letters(), "llama")


def test_loading_tells_the_thresholds_that_were_too_dear_to_check():
    far = 2**29
    model = llama(first_window=20, rows_chunk=far)
    model.config.max_position_embeddings = 2 * far
    assert prepare_model(model, Letters(), "llama").unchecked == (far,)


def test_only_a_long_row_is_left_out_where_memory_lacks():
    with unless_memory_lacks([[1] * SHORT[0], [1] * 30]):
        raise torch.OutOfMemoryError
    with pytest.raises(torch.OutOfMemoryError), unless_memory_lacks([[1] * length for length in SHORT]):
        raise torch.OutOfMemoryError
