"""Loads LoRA adapters, which change the linear layers of a served model, or refuses one with an error of one line."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn
from transformers.pytorch_utils import Conv1D

from inference.accelerator import has_own_memory
from inference.engine_errors import UnsupportedModel
from inference.local.forward.adapters import Adapters, LowRank
from inference.local.forward.fused_model import JOINED, FusedModel
from inference.model_directory.adapter_files import DOWN, PREFIX, UP, WEIGHTS, AdapterFiles

Adding = dict[str, LowRank]  # the products of one module, keyed by adapter


def check_fit(files: AdapterFiles, model: Any) -> None:
    """Raises UnsupportedModel if the adapter changes modules that are missing, of other sizes, or not supported."""
    modules, of_base = dict(model.named_modules()), f"; it was trained for {files.base}" if files.base else ""
    name = f"the adapter {files.name}"
    for path, ((_, inputs), (outputs, _)) in files.shapes.items():
        module = modules.get(path)
        if module is None:
            raise UnsupportedModel(name, f"it changes {path}, which the model does not have{of_base}")
        if not isinstance(module, nn.Linear | Conv1D) or ".experts." in path:
            raise UnsupportedModel(name, f"it changes {path}, which is no linear layer that all tokens pass")
        if module is model.get_output_embeddings():
            raise UnsupportedModel(name, f"it changes the output layer {path}, which is not supported")
        if (inputs, outputs) != (own := sizes(module)):
            found = f"{inputs} inputs and {outputs} outputs, where the model has {own[0]} and {own[1]}"
            raise UnsupportedModel(name, f"its {path} has {found}{of_base}")


def load_adapters(model: Any, decoder: Any, adapters: Iterable[AdapterFiles]) -> Adapters:
    """Lets the adapters change the model's linear layers, which `decoder` computes; raises UnsupportedModel.

    On a CPU the low-rank products are computed in float32: in bfloat16 those of few rows take twice as long.
    """
    dtype = model.dtype if has_own_memory(model.device) else torch.float32
    adding: dict[str, Adding] = defaultdict(dict)  # by module
    names = []
    for files in adapters:
        check_fit(files, model)
        names.append(files.name)
        for path, product in _read(files, model.device, dtype).items():
            adding[path][files.name] = product
    loaded = Adapters(names)
    if isinstance(decoder, FusedModel):
        decoder.adapt(loaded, _joined(model, adding))
    else:
        for path, of_layer in adding.items():  # `prepend`: runs before Llama 4's queries are scaled
            model.get_submodule(path).register_forward_hook(_hook(loaded, of_layer), prepend=True)
    return loaded


def _read(files: AdapterFiles, device: torch.device, dtype: torch.dtype) -> dict[str, LowRank]:
    """Returns an adapter's products by module; raises UnsupportedModel for values that are no numbers."""
    stored = load_file(files.directory / WEIGHTS)
    products = {}
    for path in files.shapes:
        down, up = (stored[PREFIX + path + side].to(device, torch.float32).t() for side in (DOWN, UP))
        down, up = down.to(dtype).contiguous(), (up * files.scaling(path)).to(dtype).contiguous()
        if not (down.isfinite().all() and up.isfinite().all()):
            raise UnsupportedModel(f"the adapter {files.name}", f"the weights of its {path} are no finite numbers")
        products[path] = LowRank(down, up)
    return products


def _joined(model: Any, adding: Mapping[str, Adding]) -> dict[str, Adding]:
    """Returns what is added to the layers that a FusedModel computes, by the path of the first module in each."""
    joined = dict[str, Adding]()
    for layer in range(len(model.model.layers)):
        for parts in JOINED.values():
            paths = [f"model.layers.{layer}.{part}" for part in parts]
            names = {name for path in paths for name in adding.get(path, ())}
            outputs = [sizes(model.get_submodule(path))[1] for path in paths]
            if names:
                joined[paths[0]] = {
                    name: side_by_side([adding.get(path, {}).get(name) for path in paths], outputs) for name in names
                }
    return joined


def side_by_side(products: Sequence[LowRank | None], outputs: Sequence[int]) -> LowRank:
    """Returns one product for the joined outputs of several layers of the same input; None leaves a layer unchanged."""
    starts = accumulate(outputs, initial=0)
    changed = [(product, first) for product, first in zip(products, starts, strict=False) if product]
    down = torch.cat([product.down for product, _ in changed], 1)
    up, rank = down.new_zeros(down.shape[1], sum(outputs)), 0
    for product, first in changed:
        ranks, columns = product.up.shape
        up[rank : rank + ranks, first : first + columns] = product.up
        rank += ranks
    return LowRank(down, up)


def sizes(module: Any) -> tuple[int, int]:
    """Returns a linear layer's numbers of inputs and outputs, without its weight, which is empty once it is packed."""
    return (module.nx, module.nf) if isinstance(module, Conv1D) else (module.in_features, module.out_features)


def _hook(adapters: Adapters, of_layer: Adding) -> Any:
    return lambda module, inputs, outputs: adapters.add_to(outputs, inputs[0], of_layer)
