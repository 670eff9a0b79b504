"""Faults of architectures with which rows of a batch would be answered wrongly, known before any weight is read."""

from inspect import signature
from typing import Any


def architecture_fault(model: Any, max_positions: int) -> str:
    """Returns in words why the engine cannot serve models of this architecture, or "" if it has no known fault."""
    config, decoder = model.config.get_text_config(), model.get_decoder() or model
    if getattr(config, "rel_extent", 0):  # Inkling
        return "its distances between tokens are counted from the batch's longest row"
    kept = getattr(config, "keep_window_size", None)
    if kept is not None and kept < max_positions:  # Doge
        return f"beyond {kept} tokens a row attends by the length of the batch's longest row"
    modules = dict(decoder.named_modules())
    causal = {each.is_causal for each in modules.values() if hasattr(each, "is_causal")}
    if getattr(config, "is_decoder", True) is False and causal == {False}:  # BERT and others, unless saved as decoders
        return "its tokens attend to later ones: is_decoder is false in its config.json"
    if any(hasattr(each, "create_position_ids_from_input_ids") for each in modules.values()):  # RoBERTa and others
        return "its own forward pass counts positions from the padding token's id, but generate from 0"
    of_text = type(config) is type(model.config)  # other models may place images
    places_itself = of_text and any("position" in name.rpartition(".")[2] for name in modules)
    if places_itself and "position_ids" not in signature(decoder.forward).parameters:  # RoFormer, CPM-Ant, TrOCR
        return "its forward pass takes no positions, and counts them from the batch's longest row"
    if any(hasattr(each, "_setup_cache") for each in modules.values()):  # RecurrentGemma
        return "its layers keep the states of rows themselves, outside the cache"
    if config.model_type == "moshi":
        return "its cache keeps a window, but its own forward pass attends to all tokens"
    return ""
