"""Scales Llama 4's queries by each row's own positions; transformers takes those of the batch's longest row."""

from typing import Any

import torch
from torch import Tensor


def scale_by_row(model: Any) -> None:
    """Replaces the scale in the layers that have one, which are those without rotation; other models stay as they are.

    The scale is computed in a hook of the rotation, because the rotation gets the positions of a pass.
    """
    layers = [one for one in model.modules() if getattr(one, "attn_temperature_tuning", False) and not one.use_rope]
    scales: list[Tensor] = []  # [rows, tokens, 1] of the pass that is computed now

    def keep_scales(rotation: Any, inputs: tuple[Tensor, Tensor], rotated: Tensor) -> None:
        floors = torch.floor((inputs[1].float() + 1) / layers[0].floor_scale)
        scales[:] = [(torch.log1p(floors) * layers[0].attn_scale + 1)[..., None]]

    def scaled(projection: Any, inputs: tuple[Tensor], queries: Tensor) -> Tensor:
        return (queries * scales[0]).to(queries.dtype)

    if layers:
        model.model.rotary_emb.register_forward_hook(keep_scales)
    for layer in layers:
        layer.attn_temperature_tuning = False
        layer.q_proj.register_forward_hook(scaled)
