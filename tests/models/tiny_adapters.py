"""LoRA adapters with random weights beside a tiny model, as peft stores them."""

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model

ATTENTION, MLP = ["q_proj", "v_proj"], ["gate_proj", "up_proj", "down_proj"]
EVERY_LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", *MLP]

# Ranks, scalings and modules differ, so that no adapter's products can stand for those of another.
KINDS: dict[str, dict[str, Any]] = {
    "narrow": {"r": 4, "lora_alpha": 8, "target_modules": ATTENTION},
    "wide": {"r": 8, "lora_alpha": 4, "use_rslora": True, "target_modules": EVERY_LINEAR},
    "patterned": {
        "r": 2,
        "lora_alpha": 3,
        "target_modules": MLP,
        "rank_pattern": {"down_proj": 3},
        "alpha_pattern": {r"layers\.1\.mlp\.up_proj": 9},
    },
}


def write_adapter(model: Any, directory: Path, seed: int = 0, **options: Any) -> Path:
    """Stores an adapter of this model in a directory; leaves the model as it was."""
    torch.manual_seed(seed)
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **options))
    adapted.save_pretrained(directory)
    adapted.unload()
    return directory


def write_adapters(model: Any, directory: Path, kinds: dict[str, dict[str, Any]] = KINDS) -> Path:
    """Stores an adapter of each kind in a subdirectory of its name."""
    for seed, (name, options) in enumerate(kinds.items()):
        write_adapter(model, directory / name, seed, **options)
    return directory
