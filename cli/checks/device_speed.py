"""Measures the served model's speed on a device for `magnus profile`, which loads it late because it imports torch."""

from dataclasses import asdict
from typing import Any

import torch

from inference.accelerator import chosen_device
from inference.local.engine_profile import FULL, QUICK, measure, worthwhile_threads
from inference.local.kv.kv_budget import kv_budget_bytes
from inference.local.loading.model_loading import load_model
from learning.estimators.cost_curves import fit_curves
from scheduling.costs import ServingCurves
from settings import Settings


def measured_speed(settings: Settings, device: str, quick: bool) -> tuple[dict[str, Any], ServingCurves]:
    """Returns what `magnus profile` prints about MAGNUS_MODEL on this device, and the curves that were fitted."""
    if settings.torch_threads:
        torch.set_num_threads(settings.torch_threads)
    device = chosen_device(device)
    loaded = load_model(settings.model, device, settings.dtype, settings.quantize)
    whole_bytes = kv_budget_bytes(settings.kv_budget, loaded.device, loaded.longest_row_bytes)
    budget_bytes, _ = loaded.layout.divided(whole_bytes)
    if loaded.device.type == "cpu":  # with as many threads as a worker would use
        torch.set_num_threads(worthwhile_threads(loaded, budget_bytes, most=torch.get_num_threads()))
    measured = measure(loaded, budget_bytes, QUICK if quick else FULL)
    curves = fit_curves(measured.prefills, measured.decode_steps)
    facts = {
        "model": loaded.name,
        "device": device,
        "delta_bytes": loaded.delta_bytes,
        "theta_bytes": budget_bytes,
        "curves": asdict(curves),
        "prefills": measured.prefills,
        "decode_steps": measured.decode_steps,
    }
    return facts, curves
