"""The workload of the engines benchmark: Llama shapes with random weights, and random prompts of varied lengths."""

import copy
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from inference.engine_requests import DecodingRequest
from inference.local.loading.model_loading import LoadedModel, prepare_model

# Vocabulary, hidden size, intermediate size, layers, attention heads, key-value heads. `smollm2`, `1b` and `7b` are the
# shapes of SmolLM2 135M, TinyLlama 1.1B and Llama 2 7B.
SHAPES = {
    "tiny": (512, 128, 384, 4, 4, 4),
    "30m": (8192, 512, 1408, 8, 8, 8),
    "smollm2": (49152, 576, 1536, 30, 9, 3),
    "1b": (32000, 2048, 5632, 22, 32, 4),
    "7b": (32000, 4096, 11008, 32, 32, 32),
    "qwen3-0.6b": (151936, 1024, 3072, 28, 16, 8),
}
QWEN3_HEAD_DIM = 128  # of every Qwen3, whatever its hidden size


def random_model(
    size: str, device: str, dtype: torch.dtype, positions: int = 4096
) -> LlamaForCausalLM | Qwen3ForCausalLM:
    """Make a Llama or Qwen3 of this size with seeded weights and no EOS, so that answers end at their limits."""
    vocabulary, hidden, intermediate, layers, heads, kv_heads = SHAPES[size]
    is_qwen3 = size.startswith("qwen3")
    config = (Qwen3Config if is_qwen3 else LlamaConfig)(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=QWEN3_HEAD_DIM if is_qwen3 else hidden // heads,
        tie_word_embeddings=is_qwen3,
        max_position_embeddings=positions,
        eos_token_id=None,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    with torch.device(device):
        return (Qwen3ForCausalLM if is_qwen3 else LlamaForCausalLM)(config).to(dtype).eval()


def model_of(directory: Path, device: str, dtype: str) -> Any:
    """Load a causal LM without EOS, so that answers end at their limits."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, trust_remote_code=False).to(device).eval()
    model.config.eos_token_id = model.generation_config.eos_token_id = None
    return model


def load_for_serving(model: Any, size: str) -> LoadedModel:
    """Load the model as our engine does; on a CPU a copy is loaded, because loading changes the weights' layout."""
    return prepare_model(copy.deepcopy(model) if model.device.type == "cpu" else model, None, size)


def endless_model(directory: Path | None, size: str, dtype: str) -> LoadedModel:
    """Load a directory's model, or random weights of this size if it is None, on the CPU and without EOS."""
    made = random_model(size, "cpu", getattr(torch, dtype)) if directory is None else model_of(directory, "cpu", dtype)
    return replace(load_for_serving(made, size), eos_ids=frozenset())


def mixed_lengths(prompts: int, seed: int) -> list[tuple[int, int]]:
    """Draw prompt and answer lengths in BATON's ratio 1 : 1 : 2 of long to short, short to long and short to short."""
    rng = random.Random(seed)

    def short() -> int:
        return rng.randint(4, 40)

    def long() -> int:
        return rng.randint(96, 192)

    kinds = [(long, short), (short, long), (short, short), (short, short)]
    return [(length(), answer()) for length, answer in (rng.choice(kinds) for _ in range(prompts))]


def chat_lengths(prompts: int, seed: int) -> list[tuple[int, int]]:
    """Draw prompts of 20 to 84 tokens and answers of 148 to 200, as in a chat with a small LLM."""
    rng = random.Random(seed)
    return [(rng.randint(20, 84), rng.randint(148, 200)) for _ in range(prompts)]


def sequences(lengths: Sequence[tuple[int, int]], vocabulary: int, seed: int) -> list[DecodingRequest]:
    """Make sequences of random tokens with these prompt lengths and limits."""
    rng = random.Random(seed)
    return [
        DecodingRequest(str(number), tuple(rng.randrange(1, vocabulary) for _ in range(length)), answer)
        for number, (length, answer) in enumerate(lengths)
    ]
