"""Reads a model's weights with transformers: all, or an error of one line. The model's own code is never run."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Literal

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from inference.engine_errors import QuantizationUnavailable, UnsupportedModel
from inference.model_directory.model_checks import PLACER, quantisation
from inference.model_directory.model_files import read_json
from inference.model_directory.model_weights import cpu_dtype

Quantize = Literal["4bit", "8bit"]

SHOWN_NAMES = 3  # the most wrong names that an error lists; not tuned
SHOWN_CHARACTERS = 300  # most of transformers' reasons are shorter; not tuned
# Masks and frequencies that older checkpoints store, and that models compute by themselves.
STORED_BUFFERS = re.compile(r"(^|\.)(rotary_emb\.inv_freq|(attn|attention)\.(bias|masked_bias)|position_ids)$")


def read_checkpoint(model: str, device: torch.device, dtype: str, quantize: Quantize | None) -> Any:
    """Returns the causal LM of a directory or hub id on its device.

    The dtype "auto" means the choice of `cpu_dtype` on a CPU, and the data type of the weight files on a GPU.
    Raises UnsupportedModel, UnreadableModel or QuantizationUnavailable.
    """
    disable_progress_bar()
    set_verbosity_error()  # transformers warns of missing weights; here they are refused by their names
    options: dict[str, Any] = {"dtype": dtype}
    method, _ = quantisation(read_json(model, "config.json"))
    if quantize is not None:
        if method is not None:
            raise QuantizationUnavailable(quantize, f"the weights are quantised already, by {method}")
        options["quantization_config"] = quantization(quantize, device)
    quantised = quantize is not None or method is not None
    if quantised:
        options["device_map"] = {"": device}
    config = read_config(model)
    with _as_unsupported(model):
        loaded, found = AutoModelForCausalLM.from_pretrained(
            model,
            config=config,
            trust_remote_code=False,
            use_safetensors=True,  # other formats are pickled, and may run code
            attn_implementation=None,  # a configuration may name kernels that would be downloaded from the hub
            ignore_mismatched_sizes=True,  # they are refused below, by their names
            output_loading_info=True,
            **options,
        )
    require_whole(model, found, quantised)
    if quantised:
        return loaded
    if dtype == "auto" and device.type == "cpu":
        chosen, _ = cpu_dtype(loaded.num_parameters())
        loaded = loaded.to(getattr(torch, chosen))
    return loaded.to(device)


def read_config(model: str) -> Any:
    """Returns the configuration of a causal LM; raises UnsupportedModel for one that transformers cannot load."""
    method, _ = quantisation(read_json(model, "config.json"))
    if method not in (None, "bitsandbytes", *AUTO_QUANTIZATION_CONFIG_MAPPING):
        raise UnsupportedModel(model, f"its weights are quantised by {method}, which transformers does not know")
    with _as_unsupported(model):
        config = AutoConfig.from_pretrained(model, trust_remote_code=False)
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UnsupportedModel(model, f"transformers has no causal language model of the type {config.model_type}")
    if config.is_encoder_decoder:
        raise UnsupportedModel(model, f"it is an encoder with a decoder ({config.model_type}), and continues no prompt")
    return config


@contextmanager
def _as_unsupported(model: str) -> Iterator[None]:
    """Raises UnsupportedModel for any error of transformers, which has no narrower one for files it cannot use."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:
        raise UnsupportedModel(model, _reason(model, error)) from error


def quantization(quantize: Quantize, device: torch.device) -> Any:
    """Returns the configuration of bitsandbytes for 4 or 8 bits; raises QuantizationUnavailable."""
    if device.type != "cuda":
        raise QuantizationUnavailable(quantize, f"it needs a CUDA device, this worker has {device.type}")
    for package in ("bitsandbytes", PLACER):
        if find_spec(package) is None:
            raise QuantizationUnavailable(quantize, f"{package} is not installed: pip install 'magnus-llm[quantize]'")
    from transformers import BitsAndBytesConfig  # this import fails where requirements of bitsandbytes are missing

    return BitsAndBytesConfig(load_in_4bit=quantize == "4bit", load_in_8bit=quantize == "8bit")


def require_whole(model: str, found: dict[str, Any], quantised: bool) -> None:
    """Raises UnsupportedModel for weights that are missing, of another shape, or unknown to the model.

    transformers fills the first two with random numbers and leaves the third out. It knows which weights are tied to
    others. Files of quantised weights have further tensors beside them, which each method names as it likes.
    """
    if missing := sorted(found["missing_keys"]):
        raise UnsupportedModel(model, f"its files lack {_some(missing)}")
    if mismatched := sorted(found["mismatched_keys"]):
        name, stored, expected = mismatched[0]
        raise UnsupportedModel(model, f"its {name} has the shape {[*stored]} where its config.json means {[*expected]}")
    unexpected = sorted(name for name in found["unexpected_keys"] if not STORED_BUFFERS.search(name))
    if unexpected and not quantised:
        raise UnsupportedModel(model, f"its config.json describes a model without {_some(unexpected)}, which it stores")


def _some(names: list[str]) -> str:
    others = len(names) - SHOWN_NAMES
    return ", ".join(names[:SHOWN_NAMES]) + (f" and {others} more" if others > 0 else "")


def _reason(model: str, error: Exception) -> str:
    if read_json(model, "config.json").get("auto_map") and "trust_remote_code" in str(error):
        return "it needs Python code of its own (auto_map in config.json), which Magnus never runs"
    return f"transformers cannot load it: {one_line(error)}"


def one_line(error: Exception) -> str:
    """Returns the first sentence of an error's message, with the error's class if the message is not enough."""
    first, *others = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    line = f"{first} {others[0]}" if others and first.endswith(":") else first
    told = line if isinstance(error, OSError | ValueError | ImportError) and line else f"{type(error).__name__}: {line}"
    return told if len(told) <= SHOWN_CHARACTERS else f"{told[:SHOWN_CHARACTERS]} …"
