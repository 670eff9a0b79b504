"""Finds by a forward pass what a model caches for a token and for a row, or refuses it with an error of one line."""

from functools import wraps
from inspect import signature
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import (
    DummyLayer,
    DynamicIndexedLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
)

from inference.engine_errors import UnsupportedModel
from inference.local.kv.attention_windows import INDEXER, layer_kinds
from inference.local.kv.kv_budget import KvLayout, LayerShape
from inference.local.loading.architecture_faults import architecture_fault
from inference.local.loading.decoding_check import ELSEWHERE

SERVED_LAYERS = (  # they cache keys and values of all tokens or of a window, a state for each row, both, or nothing
    DynamicLayer,
    DynamicIndexedLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    DummyLayer,
)
UNBOUNDED = 2**31  # the number of positions of a model whose configuration does not limit them


def served_layout(model: Any, name: str) -> tuple[KvLayout, int]:
    """Returns the layout of the model's cache and its number of positions; raises UnsupportedModel for known faults."""
    config = model.config.get_text_config()
    max_positions = max(0, getattr(config, "max_position_embeddings", None) or 0) or UNBOUNDED
    if fault := architecture_fault(model, max_positions):
        raise UnsupportedModel(name, f"{fault}; {ELSEWHERE}")
    _name_its_cache(model)
    return _kv_layout(model, name, max_positions), max_positions


def _kv_layout(model: Any, name: str, max_positions: int) -> KvLayout:
    """Returns the layout of the model's cache, found by a forward pass; raises UnsupportedModel."""
    cache, config = DynamicCache(config=model.config), model.config.get_text_config()
    others = sorted({type(layer).__name__ for layer in cache.layers} - {each.__name__ for each in SERVED_LAYERS})
    if others:
        raise UnsupportedModel(name, f"its layers have caches of their own kind ({', '.join(others)}); {ELSEWHERE}")
    with torch.inference_mode():
        model(torch.zeros(1, 1, dtype=torch.long, device=model.device), past_key_values=cache, use_cache=True)
    keeping_states = [layer for layer in cache.layers if isinstance(layer, LinearAttentionLayer)]
    states = [
        each for layer in keeping_states for each in (*layer.conv_states.values(), *layer.recurrent_states.values())
    ]
    shapes, tensors = [], []
    for number, layer in enumerate(cache.layers):
        if getattr(layer, "keys", None) is None:
            if isinstance(layer, DynamicLayer):
                raise UnsupportedModel(name, f"its layer {number} caches no keys and values; {ELSEWHERE}")
            shapes.append(LayerShape())
            continue
        keys, values = layer.keys, layer.values
        if keys.shape[1] != values.shape[1]:
            raise UnsupportedModel(name, f"{keys.shape[1]} key heads but {values.shape[1]} value heads; {ELSEWHERE}")
        shapes.append(LayerShape(keys.shape[1], keys.shape[3], values.shape[3]))
        tensors.append(keys)
    kinds, windows = layer_kinds(config, max_positions)
    indexers = _indexers(cache, name)
    of_tokens = (*tensors, model.get_input_embeddings().weight)[0]
    return KvLayout(
        shapes=(*shapes, *indexers.values()),
        dtype=of_tokens.dtype,
        device=of_tokens.device,
        kinds=(*kinds, *[INDEXER] * len(indexers)),
        windows=windows,
        alibi=bool(config.model_type == "bloom" or getattr(config, "alibi", False)),
        indexers={layer: len(shapes) + place for place, layer in enumerate(indexers)},
        max_positions=max_positions,
        state_bytes=sum(state.nbytes for state in states if state is not None),
    )


def _indexers(cache: DynamicCache, name: str) -> dict[int, LayerShape]:
    """Returns the shape of the keys that each layer's indexer caches, by layer; raises UnsupportedModel."""
    indexed = {number: layer for number, layer in enumerate(cache.layers) if isinstance(layer, DynamicIndexedLayer)}
    if any(layer.indexer_position_ids is not None for layer in indexed.values()):  # Qwen4-Exp
        raise UnsupportedModel(name, f"its indexers keep the positions of tokens; {ELSEWHERE}")
    keys = {number: layer.indexer_keys for number, layer in indexed.items() if layer.indexer_keys is not None}
    return {number: LayerShape(heads=1, key_dim=each.shape[-1]) for number, each in keys.items()}


def _name_its_cache(model: Any) -> None:
    """Lets a model that keeps states only take its cache as `past_key_values`, like others, not as `cache_params`."""
    own = model.forward
    if "cache_params" not in signature(own).parameters:
        return

    @wraps(own)
    def forward(*args: Any, past_key_values: Any = None, position_ids: Any = None, **options: Any) -> Any:
        if past_key_values is not None:
            options |= {"cache_params": past_key_values, "attention_mask": None}
        return own(*args, **options)

    model.forward = forward
