"""Hides tokens before GPT-Neo's window by each row's own positions; transformers counts from the longest row."""

from typing import Any

import torch
from torch import Tensor


def window_by_row(model: Any) -> None:
    """Replaces the window in the layers that have one; other models stay as they are.

    The embedding of positions gets the positions of a pass first, and keeps them for the layers.
    """
    layers = [one for one in model.modules() if getattr(one, "attention_type", "") == "local" and hasattr(one, "bias")]
    passed: list[Tensor] = []  # the positions of the pass that is computed now, [rows or 1, tokens]

    def keep_positions(embedding: Any, inputs: tuple[Tensor], embedded: Tensor) -> None:
        passed[:] = inputs

    def hide(layer: Any, inputs: tuple[Tensor], options: dict[str, Any]) -> tuple[tuple[Tensor], dict[str, Any]]:
        mask, positions = options["attention_mask"], passed[0]
        held = torch.arange(mask.shape[-1], device=mask.device).expand(len(positions), -1)
        if positions.shape[1] > 1:  # a prefill, whose tokens stand behind the cached ones of the longest row
            held = torch.cat([held[:, : -positions.shape[1]], positions], 1)
        hidden = held[:, None] <= positions[..., None] - window
        return inputs, options | {"attention_mask": mask.masked_fill(hidden[:, None], torch.finfo(mask.dtype).min)}

    if layers:
        window = model.config.window_size
        model.transformer.wpe.register_forward_hook(keep_positions)
    for layer in layers:
        layer.bias.fill_(True)
        layer.register_forward_pre_hook(hide, with_kwargs=True)
