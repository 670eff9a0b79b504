"""The fused forward pass against that of the model that it was made from."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from inference.local.forward.forward_pass import Cursor, decode_one_token, prefill
from inference.local.forward.fused_model import FusedModel, fusible
from inference.local.kv.kv_cache import KvCache
from inference.local.loading.cache_layout import served_layout
from tests.unit.inference.tiny_models import SHAPE, known

FUSED = ["llama", "mistral", "qwen2", "qwen3", "bundled"]


def llama(**options):
    return LlamaForCausalLM(LlamaConfig(**SHAPE, **options)).eval()


@pytest.mark.parametrize("architecture", FUSED)
@torch.inference_mode()
def test_it_gives_the_logits_of_the_model_that_it_was_made_from_however_attention_reads(architecture):
    loaded = known(architecture).loaded
    assert isinstance(loaded.decoder, FusedModel)
    prompts = [answered.prompt_ids for answered in known(architecture).pool]
    passes = []
    lengths = [len(prompt) + 2 for prompt in prompts]
    scarce = loaded.delta_bytes * (sum(lengths) + len(lengths))
    caches = [KvCache(loaded.layout, 2**30, piece_bytes) for piece_bytes in (0, 2**30, 0)]
    caches.append(KvCache(loaded.layout, scarce, block_tokens=2, in_blocks=True))
    for model, kv in zip((loaded.model, *[loaded.decoder] * 3), caches, strict=True):
        kv.reserve(lengths)
        logits = [prefill(model, kv, range(len(prompts)), prompts, loaded.pad_id)]
        passes.append(logits)
        for step in range(2):
            positions = [len(prompt) + step for prompt in prompts]
            cursor = Cursor.of(kv, torch.tensor([9] * len(prompts)), positions, [True] * len(prompts))
            logits.append(decode_one_token(model, kv, cursor))
    assert [kv.in_blocks for kv in caches] == [False, False, False, True]
    for theirs, together, in_pieces, in_blocks in zip(*passes, strict=True):
        torch.testing.assert_close(together, theirs, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(in_pieces, theirs, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(in_blocks, theirs, rtol=1e-4, atol=1e-4)


def test_its_weights_are_the_models_own():
    model = llama()
    prompt = torch.tensor([[5, 6, 7]])
    before, held = model(prompt).logits, {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    FusedModel(model)
    joined = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    assert len(joined) == len(held) - 2 * (2 + 1)  # a layer: queries, keys and values are one, gate and up are one
    torch.testing.assert_close(model(prompt).logits, before)


@pytest.mark.parametrize("tied", [True, False])
@torch.inference_mode()
def test_packed_weights_give_the_same_logits_and_are_held_once_but_for_what_looks_tokens_up(tied):
    model = llama(tie_word_embeddings=tied, num_key_value_heads=2)
    prompt, positions = torch.tensor([[5, 6, 7]]), torch.arange(3)[None]
    expected = model(prompt).logits
    layout = served_layout(model, "packed")[0]
    kv = KvCache(layout, 2**20)
    kv.reserve([3])
    kv.prepare_prefill([0], [3])
    fused = FusedModel(model, packed=True)
    ours = fused(prompt, position_ids=positions, past_key_values=kv).logits
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)
    left = {name for name, weight in model.named_parameters() if weight.numel() and "norm" not in name}
    assert left == {"model.embed_tokens.weight"}


@pytest.mark.parametrize("architecture", ["gpt2", "neox"])
def test_another_architecture_runs_by_itself(architecture):
    loaded = known(architecture).loaded
    assert loaded.decoder is loaded.model


def test_what_it_does_not_compute_is_left_to_the_model():
    assert fusible(llama())
    assert fusible(llama(num_key_value_heads=2))
    assert not fusible(llama(mlp_bias=True))
    assert not fusible(llama(attention_bias=True))
    adapted = llama()
    adapted.model.layers[1].mlp.up_proj = torch.nn.Sequential(adapted.model.layers[1].mlp.up_proj)
    assert not fusible(adapted)
    half_rotated = llama()
    half_rotated.model.rotary_emb.inv_freq = half_rotated.model.rotary_emb.inv_freq[:2]
    assert not fusible(half_rotated)
