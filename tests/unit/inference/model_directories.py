"""Directories of a tiny model, whole or with one thing wrong."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from settings import BUNDLED_MODEL
from tests.unit.inference.tiny_models import SHAPE

Change = Callable[[Path], object]


def whole_model(at: Path, **options: Any) -> Path:
    """Writes a random Llama with the bundled tokenizer, whose tokens it all knows."""
    torch.manual_seed(11)
    config = LlamaConfig(**SHAPE | {"vocab_size": 1280, "num_key_value_heads": 2, "eos_token_id": 1} | options)
    LlamaForCausalLM(config).save_pretrained(at)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(BUNDLED_MODEL / file, at / file)
    return at


def setting(file: str, **changed: Any) -> Change:
    """Changes entries of a JSON file; None as a value removes one."""

    def change(model: Path) -> None:
        path = model / file
        content = (json.loads(path.read_text()) if path.exists() else {}) | changed
        path.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))

    return change


def written(file: str, text: str) -> Change:
    """Writes a file."""
    return lambda model: (model / file).write_text(text)


def removed(file: str) -> Change:
    """Removes a file."""
    return lambda model: (model / file).unlink()


def weights(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Change:
    """Changes the stored tensors."""

    def rewrite(model: Path) -> None:
        file = model / "model.safetensors"
        save_file(change(load_file(file)), file, metadata={"format": "pt"})

    return rewrite


def without(*names: str) -> Change:
    """Leaves tensors out whose names begin so."""
    return weights(lambda stored: {name: value for name, value in stored.items() if not name.startswith(names)})


def sharded(model: Path) -> dict[str, str]:
    """Stores the weights in two files and an index; returns the file of each tensor."""
    stored = load_file(model / "model.safetensors")
    place = {name: f"model-0000{1 + number % 2}-of-00002.safetensors" for number, name in enumerate(stored)}
    for file in set(place.values()):
        save_file(
            {name: stored[name] for name in place if place[name] == file}, model / file, metadata={"format": "pt"}
        )
    (model / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": place}))
    (model / "model.safetensors").unlink()
    return place


def all_of(*changes: Change) -> Change:
    """Makes several changes."""
    return lambda model: [change(model) for change in changes]
