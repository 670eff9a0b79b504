"""Tiny models with random weights of the families that people run, made from transformers' configurations.

Windows, chunks and original contexts are shorter than some of the prompts, and longer than others.
"""

import random
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

VOCABULARY, POSITIONS, WINDOW, ORIGINAL = 97, 160, 12, 40
LENGTHS = (3, 45, WINDOW - 1, 70, 1, ORIGINAL - 2, 30)  # of prompts, before, beyond and across the thresholds

# What configurations call their sizes; each takes those that it has.
SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "word_embed_proj_dim"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 4),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_global_key_value_heads"), 2),
    **dict.fromkeys(("head_dim", "global_head_dim", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 8),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner", "intermediate_size_mlp"), 64),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), VOCABULARY),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx"), POSITIONS),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size"), 16),
    **dict.fromkeys(("n_shared_experts", "num_shared_experts", "n_group", "topk_group", "first_k_dense_replace"), 1),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 16),
    **dict.fromkeys(("sliding_window", "attention_chunk_size", "window_size", "max_window_layers"), WINDOW),
    **dict.fromkeys(("state_size", "mamba_d_state", "ssm_state_size"), 8),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads"), 4),
    **dict.fromkeys(("mamba_d_head", "mamba_head_dim"), 16),
    "mamba_n_groups": 1,
    "keep_window_size": 24,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.2,
}


@dataclass(frozen=True)
class Family:
    """A model type with what its tiny configuration has beside SIZES; `fast` ones are part of `make test`."""

    name: str
    model_type: str
    options: dict[str, Any] = field(default_factory=dict)
    fast: bool = False


def longrope(**options: Any) -> dict[str, Any]:
    """Rope with short and long frequencies."""
    factors = {"short_factor": [1.0] * 4, "long_factor": [4.0, 3.0, 8.0, 16.0], "factor": 4.0}
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": ORIGINAL}
    return {"rope_parameters": rope | factors | options}


def scaled(rope_type: str, **options: Any) -> dict[str, Any]:
    """Rope scaled four times."""
    return {"rope_parameters": {"rope_type": rope_type, "rope_theta": 1e4, "factor": 4.0, **options}}


def tiny_model(family: Family) -> Any:
    """The model of a family, whose answers differ between prompts."""
    config = AutoConfig.for_model(family.model_type, **sized(family.model_type, family.options))
    torch.manual_seed(7)
    return shaken(AutoModelForCausalLM.from_config(config, dtype=torch.float32))


def sized(model_type: str, options: dict[str, Any]) -> dict[str, Any]:
    """The entries of SIZES that the configurations of a type have, with further options."""
    known = CONFIG_MAPPING[model_type]
    names = {name for each in known.__mro__ for name in getattr(each, "__annotations__", {})}
    return {name: size for name, size in SIZES.items() if name in names} | options


def shaken(model: Any) -> Any:
    """The model with noise in all weights, so that no part of it is without effect; it ends no answer."""
    noise = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=noise) * (0.15 if weight.dim() > 1 else 0.1))
    model.generation_config.eos_token_id = None
    return model.eval()


def prompts() -> list[tuple[int, ...]]:
    """Prompts of LENGTHS random tokens."""
    rng = random.Random(5)
    return [tuple(rng.randrange(8, VOCABULARY) for _ in range(length)) for length in LENGTHS]
