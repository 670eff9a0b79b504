"""Reads the files of LoRA adapters, and names in one line what keeps an adapter from being served. Imports no torch.

An adapter's configuration may ask for more than low-rank products; whatever is not understood is refused, because the
adapter would answer otherwise than it was trained to.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

from inference.engine_errors import UnreadableModel, UnsupportedModel
from inference.model_directory.model_files import UnreadableWeights, read_header, read_json

CONFIG, WEIGHTS, PICKLED = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
PREFIX, DOWN, UP = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
DEFAULT_ALPHA = 8  # the default of peft
# Entries that change no answer: the weights tell which modules are changed, and by which rank.
WITHOUT_EFFECT = {
    "auto_mapping", "base_model_name_or_path", "corda_config", "eva_config", "exclude_modules", "fan_in_fan_out",
    "inference_mode", "layers_pattern", "layers_to_transform", "lora_dropout", "lora_ga_config", "loftq_config",
    "megatron_core", "peft_version", "qalora_group_size", "r", "rank_pattern", "revision", "runtime_config",
    "target_modules",
}  # fmt: skip
# Ways to begin a training that leave the base's own weights as they are; others, such as pissa, take a part of them.
OWN_BEGINNINGS = (None, True, False, "gaussian", "eva", "orthogonal", "mica")
WANTED: Mapping[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "task_type": (None, "CAUSAL_LM"),
    "bias": (None, "none"),
    "init_lora_weights": OWN_BEGINNINGS,
}
SCALED_BY = ("lora_alpha", "alpha_pattern", "use_rslora")


@dataclass(frozen=True, slots=True)
class AdapterFiles:
    """An adapter as its files describe it; `shapes` has (rank, inputs) and (outputs, rank) for each module."""

    name: str
    directory: Path
    base: str  # the base model, as the adapter's training named it; "" if the files do not say
    shapes: Mapping[str, tuple[tuple[int, int], tuple[int, int]]]
    _alpha: float
    _alpha_pattern: Mapping[str, float]
    _by_root: bool  # rank-stabilised: the scaling is alpha / √rank

    def scaling(self, module: str) -> float:
        """Returns the factor of a module's product; patterns name modules by the end of their path, as in peft."""
        matching = (pattern for pattern in self._alpha_pattern if re.match(rf"(.*\.)?({pattern})$", module))
        pattern, rank = next(matching, None), self.shapes[module][0][0]
        alpha = self._alpha if pattern is None else self._alpha_pattern[pattern]
        return alpha / (sqrt(rank) if self._by_root else rank)


def read_adapters(directory: str) -> dict[str, AdapterFiles]:
    """Returns by name the adapters in the subdirectories; raises UnsupportedModel or UnreadableModel for a bad one."""
    place = Path(directory)
    if not place.is_dir():
        raise UnreadableModel(directory, "there is no such directory of adapters")
    if (place / CONFIG).is_file():
        raise UnreadableModel(directory, "it is an adapter itself; name the directory that holds it")
    found = {each.name: read_adapter(each) for each in sorted(place.iterdir()) if (each / CONFIG).is_file()}
    if not found:
        raise UnreadableModel(directory, f"no directory in it has an {CONFIG}")
    return found


def read_adapter(directory: Path) -> AdapterFiles:
    """Returns the adapter of a directory; raises UnsupportedModel or UnreadableModel."""
    config, name = read_json(str(directory), CONFIG), f"the adapter {directory.name}"
    for entry, wanted in WANTED.items():
        if config.get(entry) not in wanted:
            raise UnsupportedModel(name, f"its {CONFIG} has {entry} {config.get(entry)!r}, which is not supported")
    known = WITHOUT_EFFECT.union(WANTED, SCALED_BY)
    for entry, value in config.items():
        if value and entry not in known:
            raise UnsupportedModel(name, f"its {CONFIG} asks for {entry}, which is not supported")
    alpha, patterns = config.get("lora_alpha", DEFAULT_ALPHA), config.get("alpha_pattern") or {}
    if not isinstance(patterns, dict) or not all(type(one) in (int, float) for one in (alpha, *patterns.values())):
        raise UnreadableModel(str(directory), f"its {CONFIG} has a lora_alpha or an alpha_pattern that is no number")
    try:
        for pattern in patterns:
            re.compile(pattern)
    except re.error as error:
        raise UnreadableModel(str(directory), f"the alpha_pattern in its {CONFIG} is no expression: {error}") from error
    base, by_root = str(config.get("base_model_name_or_path") or ""), bool(config.get("use_rslora"))
    return AdapterFiles(directory.name, directory, base, _shapes(name, directory), alpha, patterns, by_root)


def _shapes(name: str, directory: Path) -> dict[str, tuple[tuple[int, int], tuple[int, int]]]:
    """Returns the shapes of the two matrices of each module, by its path; raises UnsupportedModel."""
    if not (directory / WEIGHTS).is_file():
        pickled = (directory / PICKLED).is_file()
        only = f"; {PICKLED} is pickled and may run code: save the adapter again with peft's save_pretrained()"
        raise UnsupportedModel(name, f"it has no {WEIGHTS}{only if pickled else ''}")
    try:
        stored = {tensor: tuple(held["shape"]) for tensor, held in read_header(directory / WEIGHTS).items()}
    except UnreadableWeights as error:
        raise UnsupportedModel(name, str(error)) from error
    modules = dict.fromkeys(key.removeprefix(PREFIX).removesuffix(DOWN).removesuffix(UP) for key in stored)
    of_pairs = {f"{PREFIX}{module}{side}" for module in modules for side in (DOWN, UP)}
    if others := sorted(stored.keys() - of_pairs):
        raise UnsupportedModel(name, f"its {WEIGHTS} has {others[0]}, which belongs to no low-rank product")
    if missing := sorted(of_pairs - stored.keys()):
        raise UnsupportedModel(name, f"its {WEIGHTS} lacks {missing[0]}")
    if not modules:
        raise UnsupportedModel(name, f"its {WEIGHTS} is empty")
    shapes = {}
    for module in modules:
        down, up = stored[PREFIX + module + DOWN], stored[PREFIX + module + UP]
        if len(down) != 2 or len(up) != 2 or down[0] != up[1] or not down[0]:
            raise UnsupportedModel(name, f"the two matrices of its {module} have the shapes {[*down]} and {[*up]}")
        shapes[module] = ((down[0], down[1]), (up[0], up[1]))
    return shapes
