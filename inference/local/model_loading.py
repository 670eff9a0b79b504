"""Loads a causal LM of transformers, and checks that cached decoding gives the model's own logits before it serves."""

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Literal

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers.cache_utils import DynamicLayer
from transformers.utils.logging import disable_progress_bar

from inference.engine_errors import QuantizationUnavailable, UnsupportedModel
from inference.local.cpu_dtype import cpu_dtype
from inference.local.forward_pass import Cursor, decode_one_token, prefill
from inference.local.fused_model import FusedModel, fusible
from inference.local.kv_cache import KvCache, KvLayout

Quantize = Literal["4bit", "8bit"]

TRIAL_ROWS = 16  # of a typical decoding step; from 8 to 64 the order of the two layouts was the same on each CPU
TRIAL_PRODUCTS = 5  # in one timing, so that a tiny weight's products are longer than the clock is coarse; not tuned
TRIALS = 15  # timings of each layout, interleaved, for a median that a busy machine does not sway; not tuned
CLEARLY_FASTER = 0.97  # a smaller gain is noise, and the layout should be the same at each start; not tuned


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model on its device, with everything that an engine needs to know about it."""

    model: Any
    decoder: Any  # runs its forward passes: the model itself, or a FusedModel over the same weights
    tokenizer: Any
    name: str
    device: torch.device
    layout: KvLayout
    eos_ids: frozenset[int]
    pad_id: int
    max_positions: int
    weight_bytes: int

    @property
    def delta_bytes(self) -> int:
        """Δ: bytes of KV cache that one token takes (Magnus Eq. 1)."""
        return self.layout.token_bytes


def load_model(model: str, device: str = "cpu", dtype: str = "auto", quantize: Quantize | None = None) -> LoadedModel:
    """Load a model directory or hub id; raises UnsupportedModel or QuantizationUnavailable.

    dtype "auto" is on a CPU what `cpu_dtype` says, and on a GPU the data type that the model is stored in.
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
    """The configuration of bitsandbytes for 4 or 8 bits; raises QuantizationUnavailable."""
    if device.type != "cuda":
        raise QuantizationUnavailable(quantize, f"it needs a CUDA device, this worker has {device.type}")
    if find_spec("bitsandbytes") is None:
        raise QuantizationUnavailable(quantize, "bitsandbytes is not installed: pip install 'magnus[quantize]'")
    from transformers import BitsAndBytesConfig  # its import fails where bitsandbytes' own requirements are missing

    return BitsAndBytesConfig(load_in_4bit=quantize == "4bit", load_in_8bit=quantize == "8bit")


def prepare_model(model: Any, tokenizer: Any, name: str) -> LoadedModel:
    """Prepare a model in memory for serving; raises UnsupportedModel if the engine would compute wrong answers."""
    model.eval()
    if model.device.type == "cpu":
        linears = untied_linears(model)
        if linears and column_major_pays(max((linear.weight for linear in linears), key=torch.numel)):
            store_column_major(linears)
    try:
        return _prepare(model, tokenizer, name)
    except torch.OutOfMemoryError:
        raise
    except (TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        raise UnsupportedModel(name, f"its forward pass takes no prepared mask and cache: {error}") from error


def _prepare(model: Any, tokenizer: Any, name: str) -> LoadedModel:
    eos_ids = frozenset(_ids(model.generation_config.eos_token_id) or _ids(model.config.eos_token_id))
    pad_id = next(iter((*_ids(model.generation_config.pad_token_id), *sorted(eos_ids), 0)))
    layout = kv_layout(model, name)
    loaded = LoadedModel(
        model=model,
        decoder=FusedModel(model) if fusible(model) else model,
        tokenizer=tokenizer,
        name=name,
        device=model.device,
        layout=layout,
        eos_ids=eos_ids,
        pad_id=pad_id,
        max_positions=getattr(model.config, "max_position_embeddings", None) or 2**31,
        weight_bytes=sum(weight.nbytes for weight in (*model.parameters(), *model.buffers())),
    )
    check_decoding(loaded)
    return loaded


def untied_linears(model: Any) -> list[torch.nn.Linear]:
    """The linear layers but an output layer with the embedding's weight, whose look-ups need its rows contiguous."""
    embedding = model.get_input_embeddings().weight
    return [each for each in model.modules() if type(each) is torch.nn.Linear and each.weight is not embedding]


@torch.inference_mode()
def column_major_pays(weight: torch.Tensor) -> bool:
    """Whether this CPU multiplies few rows faster by the weight in column-major order, tried for some milliseconds.

    It depends on the make of the CPU and on the data type: in float32 column-major was a tenth faster on one CPU,
    row-major a fifth on another.
    """
    rows = torch.randn(TRIAL_ROWS, weight.shape[1]).to(weight.dtype)
    by_columns = weight.t().contiguous().t()
    took_s: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(TRIALS):
        for is_column_major, each in ((False, weight), (True, by_columns)):
            started = perf_counter()
            for _ in range(TRIAL_PRODUCTS):
                torch.nn.functional.linear(rows, each)
            took_s[is_column_major].append(perf_counter() - started)
    return median(took_s[True]) < CLEARLY_FASTER * median(took_s[False])


def store_column_major(linears: Iterable[torch.nn.Linear]) -> None:
    """Store the weights of these layers in column-major order; shapes and values stay as they are."""
    for linear in linears:
        linear.weight.data = linear.weight.data.t().contiguous().t()


def kv_layout(model: Any, name: str) -> KvLayout:
    """The shape of what the model caches for one token, measured by feeding it one; raises UnsupportedModel."""
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


@torch.inference_mode()
def check_decoding(loaded: LoadedModel) -> None:
    """Compare a padded prefill and a cached decoding step with the model's own forward pass over the whole prompts.

    Raises UnsupportedModel if they differ by more than 0.001 of the largest logit in float32 or a tenth of it in half
    precision: more than rounding, less than a wrong mask or wrong positions. Not tuned.
    """
    vocabulary = loaded.model.config.get_text_config().vocab_size
    prompts = [[(7 * row + 3 * column) % vocabulary for column in range(length)] for row, length in enumerate((3, 6))]
    kv = KvCache(loaded.layout, budget_bytes=2**40)
    kv.reserve(len(prompts), 8)
    ours = [prefill(loaded.decoder, kv, range(2), [prompt[:-1] for prompt in prompts], loaded.pad_id)]
    cursor = Cursor.from_host(
        kv, [prompt[-1] for prompt in prompts], [len(prompt) - 1 for prompt in prompts], [True, True]
    )
    ours.append(decode_one_token(loaded.decoder, kv, cursor))
    for row, prompt in enumerate(prompts):
        whole = loaded.model(torch.tensor([prompt], device=loaded.device)).logits[0].float()
        for step, logits in enumerate(ours):
            expected = whole[len(prompt) - 2 + step]
            off = (logits[row].float() - expected).abs().max() / expected.abs().max().clamp(min=1e-6)
            if not off < (1e-3 if loaded.layout.dtype == torch.float32 else 0.1):
                raise UnsupportedModel(loaded.name, f"cached decoding differs from its own forward pass by {off:.2g}")


def _ids(value: int | Iterable[int] | None) -> tuple[int, ...]:
    """The token ids of a generation config's entry: none, one or several."""
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)
