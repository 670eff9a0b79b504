"""Loads a causal LM of transformers, and checks before serving that cached decoding gives the model's own logits."""

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers.cache_utils import DynamicLayer
from transformers.utils.logging import disable_progress_bar

from inference.engine_errors import QuantizationUnavailable, UnsupportedModel
from inference.local.decode_attention import fastest_attention
from inference.local.decoding_check import ELSEWHERE, checked_batches, decoding_fault, own_logits, row_dependence
from inference.local.format_masks import FormatMasks, load_format_masks
from inference.local.fused_model import FusedModel, fusible
from inference.local.kv_budget import KvLayout
from inference.local.linear_weights import WeightForm, fastest_form, store_column_major
from inference.local.longrope import Longrope, rotate_by_row
from inference.model_weights import cpu_dtype

Quantize = Literal["4bit", "8bit"]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model on its device, with everything that an engine needs to know about it.

    `decoder` runs the forward passes: it is the model itself, or a FusedModel over its weights. A `model` whose weights
    were packed can no longer be called.
    """

    model: Any
    decoder: Any
    tokenizer: Any
    name: str
    device: torch.device
    layout: KvLayout
    eos_ids: frozenset[int]
    pad_id: int
    max_positions: int
    weight_bytes: int  # like `parameters`, counted before packing, which empties the weights of `model`
    parameters: int
    format_masks: FormatMasks | None = None  # None: answers cannot be constrained to a format
    longrope: Longrope | None = None  # how rows of a model with longrope are prefilled

    @property
    def delta_bytes(self) -> int:
        """Δ: bytes of KV cache that one token takes (Magnus Eq. 1)."""
        return self.layout.token_bytes

    @property
    def longest_row_bytes(self) -> int:
        """The bytes of KV cache that a row takes if it fills the model's context."""
        return self.max_positions * self.delta_bytes

    @property
    def fused(self) -> bool:
        """Whether a FusedModel runs the forward passes; only that reads a KV cache in blocks."""
        return self.decoder is not self.model


def load_model(model: str, device: str = "cpu", dtype: str = "auto", quantize: Quantize | None = None) -> LoadedModel:
    """Loads a model directory or hub id; raises UnsupportedModel or QuantizationUnavailable.

    The dtype "auto" means the choice of `cpu_dtype` on a CPU, and the data type of the weight files on a GPU.
    """
    disable_progress_bar()
    target = torch.device(device)
    options: dict[str, Any] = {"dtype": dtype}
    if quantize is not None:
        options |= {"quantization_config": quantization(quantize, target), "device_map": {"": target}}
    try:
        config = AutoConfig.from_pretrained(model)
        loaded = AutoModelForCausalLM.from_pretrained(model, config=config, **options)
    except (OSError, ValueError) as error:  # no such model, or transformers has no causal LM for it
        raise UnsupportedModel(model, str(error)) from error
    if dtype == "auto" and target.type == "cpu":
        chosen, _ = cpu_dtype(loaded.num_parameters())
        loaded = loaded.to(getattr(torch, chosen))
    if quantize is None:
        loaded = loaded.to(target)
    return prepare_model(loaded, AutoTokenizer.from_pretrained(model), name=Path(model).name)


def quantization(quantize: Quantize, device: torch.device) -> Any:
    """Returns the configuration of bitsandbytes for 4 or 8 bits; raises QuantizationUnavailable."""
    if device.type != "cuda":
        raise QuantizationUnavailable(quantize, f"it needs a CUDA device, this worker has {device.type}")
    if find_spec("bitsandbytes") is None:
        raise QuantizationUnavailable(quantize, "bitsandbytes is not installed: pip install 'magnus-llm[quantize]'")
    from transformers import BitsAndBytesConfig  # this import fails where requirements of bitsandbytes are missing

    return BitsAndBytesConfig(load_in_4bit=quantize == "4bit", load_in_8bit=quantize == "8bit")


def prepare_model(model: Any, tokenizer: Any, name: str) -> LoadedModel:
    """Prepares a model in memory for serving; raises UnsupportedModel if the engine would compute wrong answers."""
    model.eval()
    form: WeightForm = "row-major"
    linears = untied_linears(model)
    if model.device.type == "cpu" and linears:
        form = fastest_form(max((linear.weight.data for linear in linears), key=torch.numel), packable=fusible(model))
    if form == "column-major":
        store_column_major(linears)
    try:
        return _prepare(model, tokenizer, name, packed=form == "packed")
    except torch.OutOfMemoryError:
        raise
    except (TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        raise UnsupportedModel(name, f"its forward pass takes no prepared mask and cache: {error}") from error


def _prepare(model: Any, tokenizer: Any, name: str, packed: bool) -> LoadedModel:
    eos_ids = frozenset(_ids(model.generation_config.eos_token_id) or _ids(model.config.eos_token_id))
    pad_id = next(iter((*_ids(model.generation_config.pad_token_id), *sorted(eos_ids), 0)))
    max_positions = getattr(model.config, "max_position_embeddings", None) or 2**31
    if fault := row_dependence(model.config, max_positions):
        raise UnsupportedModel(name, fault)
    layout, batches = kv_layout(model, name), checked_batches(model, max_positions)
    own = [[own_logits(model, prompt) for prompt in batch] for batch in batches]
    weight_bytes = sum(weight.nbytes for weight in (*model.parameters(), *model.buffers()))
    parameters = model.num_parameters()
    decoder = model
    if fusible(model):
        decoder = FusedModel(model, fastest_attention(layout, model.config.num_attention_heads), packed)
    loaded = LoadedModel(
        model=model,
        decoder=decoder,
        tokenizer=tokenizer,
        name=name,
        device=model.device,
        layout=layout,
        eos_ids=eos_ids,
        pad_id=pad_id,
        max_positions=max_positions,
        weight_bytes=weight_bytes,
        parameters=parameters,
        format_masks=load_format_masks(tokenizer, own[0][0].shape[-1], eos_ids),
        longrope=rotate_by_row(model),
    )
    for batch, logits in zip(batches, own, strict=True):
        if fault := decoding_fault(decoder, layout, loaded.longrope, batch, logits):
            raise UnsupportedModel(name, fault)
    return loaded


def untied_linears(model: Any) -> list[torch.nn.Linear]:
    """Returns all linear layers, except an output layer that shares the embedding's weight, which stays row-major."""
    embedding = model.get_input_embeddings().weight
    return [each for each in model.modules() if type(each) is torch.nn.Linear and each.weight is not embedding]


def kv_layout(model: Any, name: str) -> KvLayout:
    """Returns the shape of one token in the model's cache, found by a forward pass; raises UnsupportedModel."""
    cache = DynamicCache(config=model.config)
    others = sorted({type(layer).__name__ for layer in cache.layers if type(layer) is not DynamicLayer})
    if others:
        raise UnsupportedModel(
            name, f"only full attention in every layer is served, it has {', '.join(others)}; {ELSEWHERE}"
        )
    with torch.inference_mode():
        model(torch.zeros(1, 1, dtype=torch.long, device=model.device), past_key_values=cache, use_cache=True)
    layers = [layer for layer in cache.layers if layer.is_initialized]
    shapes = {
        (layer.keys.shape[1], layer.keys.shape[3], layer.values.shape[1], layer.values.shape[3]) for layer in layers
    }
    if len(shapes) != 1 or len(layers) != len(cache.layers):
        raise UnsupportedModel(name, f"its {len(cache.layers)} layers do not cache alike: {sorted(shapes)}")
    key_heads, key_dim, value_heads, value_dim = shapes.pop()
    if key_heads != value_heads:
        raise UnsupportedModel(name, f"{key_heads} key heads but {value_heads} value heads")
    keys = layers[0].keys
    return KvLayout(len(layers), key_heads, key_dim, value_dim, keys.dtype, keys.device)


def _ids(value: int | Iterable[int] | None) -> tuple[int, ...]:
    """Returns the token ids in an entry of a generation config, which may have none, one or several."""
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)
