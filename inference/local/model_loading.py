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
from inference.local.format_masks import FormatMasks, load_format_masks
from inference.local.forward_pass import Cursor, decode_one_token, prefill
from inference.local.fused_model import FusedModel, fusible
from inference.local.kv_budget import KvLayout
from inference.local.kv_cache import KvCache
from inference.local.linear_weights import WeightForm, fastest_form, store_column_major
from inference.model_weights import cpu_dtype

Quantize = Literal["4bit", "8bit"]

CHECK_TOKENS = 16  # tokens of KV cache that `check_decoding` needs for its two prompts


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
    layout, own_logits = kv_layout(model, name), [_logits(model, prompt) for prompt in check_prompts(model)]
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
        max_positions=getattr(model.config, "max_position_embeddings", None) or 2**31,
        weight_bytes=weight_bytes,
        parameters=parameters,
        format_masks=load_format_masks(tokenizer, own_logits[0].shape[-1], eos_ids),
    )
    check_decoding(loaded, own_logits)
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
        raise UnsupportedModel(name, f"only full attention in every layer is served, it has {', '.join(others)}")
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


def check_prompts(model: Any) -> list[list[int]]:
    """Returns two short prompts of different lengths."""
    vocabulary = model.config.get_text_config().vocab_size
    return [[(7 * row + 3 * column) % vocabulary for column in range(length)] for row, length in enumerate((3, 6))]


@torch.inference_mode()
def _logits(model: Any, prompt: list[int]) -> torch.Tensor:
    """Returns the logits of the model's own forward pass, [tokens, vocabulary]."""
    logits: torch.Tensor = model(torch.tensor([prompt], device=model.device)).logits[0].float()
    return logits


@torch.inference_mode()
def check_decoding(loaded: LoadedModel, own_logits: list[torch.Tensor]) -> None:
    """Compares a padded prefill and a cached decoding step with the model's own forward pass over the whole prompts.

    Raises UnsupportedModel if they differ by more than 0.001 of the largest logit in float32, or by a tenth of it in
    half precision. Rounding causes smaller differences; a wrong mask or wrong positions cause larger ones. Not tuned.
    """
    prompts = check_prompts(loaded.model)
    caches = [KvCache(loaded.layout, CHECK_TOKENS * loaded.delta_bytes)]
    if loaded.fused:
        caches.append(KvCache(loaded.layout, CHECK_TOKENS * loaded.delta_bytes, block_tokens=2, in_blocks=True))
    for kv in caches:
        lengths = [*map(len, prompts)]
        kv.reserve(lengths)
        ours = [prefill(loaded.decoder, kv, range(2), [prompt[:-1] for prompt in prompts], loaded.pad_id)]
        cursor = Cursor.from_host(
            kv, [prompt[-1] for prompt in prompts], [length - 1 for length in lengths], [True, True]
        )
        ours.append(decode_one_token(loaded.decoder, kv, cursor))
        for row, (prompt, whole) in enumerate(zip(prompts, own_logits, strict=True)):
            for step, logits in enumerate(ours):
                expected = whole[len(prompt) - 2 + step]
                off = (logits[row].float() - expected).abs().max() / expected.abs().max().clamp(min=1e-6)
                if not off < (1e-3 if loaded.layout.dtype == torch.float32 else 0.1):
                    raise UnsupportedModel(
                        loaded.name, f"cached decoding differs from its own forward pass by {off:.2g}"
                    )


def _ids(value: int | Iterable[int] | None) -> tuple[int, ...]:
    """Returns the token ids in an entry of a generation config, which may have none, one or several."""
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)
