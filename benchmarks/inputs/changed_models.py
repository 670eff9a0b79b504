"""Two changed copies of the bundled model: one with more parameters and the same answers, one whose answers never end.

The larger one decodes as slowly as a real model. Its new hidden values stay zero, because the outputs of new heads and
units are multiplied by zero weights; weights and epsilon of the norms compensate for the larger number of values. The
added layers add zero to the residual. All new products are still computed.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from settings import BUNDLED_MODEL

ModelSize = Literal["1x", "8x", "20x", "35x", "1b", "7b"]  # times the bundled model's 0.73 million parameters, or all
MODEL_SIZES: tuple[ModelSize, ...] = get_args(ModelSize)
UNUSED_STD = 0.02  # the standard deviation of weights without effect, which must be neither zero nor denormal


@dataclass(frozen=True, slots=True)
class _Shape:
    width_factor: int
    intermediate: int
    layers: int


SHAPES: dict[str, _Shape] = {
    "8x": _Shape(2, 704, 7),
    "20x": _Shape(3, 1056, 8),
    "35x": _Shape(4, 1408, 8),
    "1b": _Shape(16, 5632, 22),  # 1.1 billion parameters
    "7b": _Shape(32, 11008, 32),  # the layers of Llama 2 7B, with heads of 32 dimensions
}


def kv_growth(size: ModelSize) -> float:
    """Return the size of a token's KV cache at this model size, as a multiple of the bundled model's."""
    if size == "1x":
        return 1.0
    layers = int(json.loads((BUNDLED_MODEL / "config.json").read_text())["num_hidden_layers"])
    return SHAPES[size].width_factor * SHAPES[size].layers / layers


def enlarged_model(
    size: ModelSize, target: Path, device: str = "cpu", dtype: Literal["float32", "bfloat16"] = "float32"
) -> Path:
    """Write the bundled model at this size into a new directory below `target`; returns the directory.

    The device computes the weights, which takes a CPU minutes for the sizes of billions.
    """
    if size == "1x":
        return BUNDLED_MODEL
    shape, directory = SHAPES[size], target / f"bundled-{size}"
    directory.mkdir()
    config = json.loads((BUNDLED_MODEL / "config.json").read_text())
    old = load_file(BUNDLED_MODEL / "model.safetensors", device)
    weights = _Enlarger(config, shape, torch.device(device), getattr(torch, dtype)).weights(old)
    config["rms_norm_eps"] /= shape.width_factor
    for name in ("hidden_size", "num_attention_heads", "num_key_value_heads"):
        config[name] *= shape.width_factor
    config |= {"intermediate_size": shape.intermediate, "num_hidden_layers": shape.layers, "dtype": dtype}
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(BUNDLED_MODEL / name, directory)
    return directory


class _Enlarger:
    def __init__(self, config: dict[str, Any], shape: _Shape, device: torch.device, dtype: torch.dtype) -> None:
        self._shape, self._device, self._dtype = shape, device, dtype
        self._hidden = config["hidden_size"] * shape.width_factor
        self._heads = config["num_attention_heads"] * config["head_dim"] * shape.width_factor
        self._key_heads = config["num_key_value_heads"] * config["head_dim"] * shape.width_factor
        self._old_layers = config["num_hidden_layers"]
        self._random = torch.Generator(device).manual_seed(0)

    def weights(self, old: dict[str, Tensor]) -> dict[str, Tensor]:
        """Compute all weights of the enlarged model, by name."""
        new = {name: self._enlarged(name, weight) for name, weight in old.items()}
        last = f"layers.{self._old_layers - 1}."
        for layer in range(self._old_layers, self._shape.layers):
            for name in [name for name in old if last in name]:
                added = torch.zeros_like(new[name]) if _is_output(name) else self._unused(*new[name].shape)
                new[name.replace(last, f"layers.{layer}.")] = torch.ones_like(new[name]) if added.ndim == 1 else added
        return new

    def _enlarged(self, name: str, old: Tensor) -> Tensor:
        if old.ndim == 1:  # the weight of a norm
            new = torch.ones(self._hidden, device=self._device, dtype=self._dtype)
            new[: len(old)] = old / self._shape.width_factor**0.5
            return new
        if "embed_tokens" in name or "lm_head" in name:
            new = self._zeros(len(old), self._hidden)
        elif _is_output(name):
            new = self._zeros(self._hidden, self._heads if "o_proj" in name else self._shape.intermediate)
        elif "q_proj" in name:
            new = self._unused(self._heads, self._hidden)
        elif "k_proj" in name or "v_proj" in name:
            new = self._unused(self._key_heads, self._hidden)
        else:
            new = self._unused(self._shape.intermediate, self._hidden)
        new[: old.shape[0], : old.shape[1]] = old
        return new

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, device=self._device, dtype=self._dtype)

    def _unused(self, *shape: int) -> Tensor:
        return self._zeros(*shape).normal_(0.0, UNUSED_STD, generator=self._random)


def _is_output(name: str) -> bool:
    """Return whether this layer's output is added to the residual."""
    return "o_proj" in name or "down_proj" in name


EOS_ID = 1
POSITIONS = 8192  # with rotary embeddings any number works; the text of an endless row does not matter
EMBEDDINGS = "model.embed_tokens.weight"  # also the output's weights: a row of zeros has the logit 0, below the largest


def make_endless_model(directory: Path) -> Path:
    """Write a model whose answers never end; returns its directory."""
    model = directory / "endless"
    shutil.copytree(BUNDLED_MODEL, model)
    weights = load_file(model / "model.safetensors")
    weights[EMBEDDINGS][EOS_ID] = 0.0
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": POSITIONS}))
    return model
