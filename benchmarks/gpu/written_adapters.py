"""Random LoRA adapters of a Llama's queries and values, as files, and `generate` with one of them for comparison."""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from inference.model_directory.adapter_files import CONFIG, DOWN, PREFIX, UP, WEIGHTS

RANK, ALPHA = 8, 16
STD = 0.1  # large enough to change most answers of the bundled model, small enough to leave them clear


def write_adapters(model: Path, directory: Path, names: Sequence[str], rank: int = RANK) -> Path:
    """Write adapters of these names for a model's directory; returns the directory that holds them."""
    config = json.loads((model / "config.json").read_text())
    hidden, dim = config["hidden_size"], config["head_dim"]
    outputs = {"q_proj": config["num_attention_heads"] * dim, "v_proj": config["num_key_value_heads"] * dim}
    for seed, name in enumerate(names):
        random, stored = torch.Generator().manual_seed(seed), dict[str, Tensor]()
        for layer in range(config["num_hidden_layers"]):
            for module, size in outputs.items():
                path = f"{PREFIX}model.layers.{layer}.self_attn.{module}"
                stored[path + DOWN] = STD * torch.randn(rank, hidden, generator=random)
                stored[path + UP] = STD * torch.randn(size, rank, generator=random)
        place = directory / name
        place.mkdir(parents=True, exist_ok=True)
        save_file(stored, place / WEIGHTS)
        (place / CONFIG).write_text(json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": ALPHA * rank // RANK}))
    return directory


@contextmanager
def adapted(model: Any, adapter: Path) -> Iterator[None]:
    """Let an adapter change a model's own forward pass, computed in float32, until the context ends."""
    stored, scaling = load_file(adapter / WEIGHTS, str(model.device)), ALPHA / RANK
    with ExitStack() as stack:
        for path in {name.removeprefix(PREFIX).removesuffix(DOWN) for name in stored if name.endswith(DOWN)}:
            down, up = stored[PREFIX + path + DOWN], stored[PREFIX + path + UP]

            def add(
                module: Any, inputs: tuple[Tensor], outputs: Tensor, down: Tensor = down, up: Tensor = up
            ) -> Tensor:
                return outputs + scaling * (inputs[0] @ down.t()) @ up.t()

            stack.callback(model.get_submodule(path).register_forward_hook(add).remove)
        yield
