"""Reads all weights of a model with transformers, or raises an error of one line. A model's own code is never run."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Literal

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
)
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from inference.engine_errors import QuantizationUnavailable, UnsupportedModel
from inference.model_directory.model_checks import PLACER, quantisation
from inference.model_directory.model_files import read_json
from inference.model_directory.model_weights import cpu_dtype

Quantize = Literal["4bit", "8bit"]

WITH_ENCODERS = {*MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES, *MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES}
SHOWN_NAMES = 3  # the most wrong names that an error lists; not tuned
SHOWN_CHARACTERS = 300  # most reasons that transformers gives are shorter; not tuned
# Masks and frequencies that older checkpoints store, and that models compute by themselves.
STORED_BUFFERS = re.compile(r"(^|\.)(rotary_emb\.inv_freq|(attn|attention)\.(bias|masked_bias)|position_ids)$")
# Modules for images and sounds, which text does not pass: from a checkpoint of several media, a causal LM loads none.
OTHER_MEDIA = re.compile(
    r"^(model\.|thinker\.)?(vision_model|vision_tower|visual|audio_tower|audio_model|multi_modal_projector|embed_vision|"
    r"embed_audio|talker|token2wav|code2wav)\."
)


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
    with as_unsupported(model):
        loaded, found = auto_class(config).from_pretrained(
            model,
            config=config,
            trust_remote_code=False,
            use_safetensors=True,  # other formats are pickled, and may run code
            attn_implementation=None,  # a configuration may name kernels that would be downloaded from the hub
            ignore_mismatched_sizes=True,  # such weights are refused below, by their names
            output_loading_info=True,
            **options,
        )
    require_whole(model, found, quantised)
    loaded = text_part(loaded)
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
    with as_unsupported(model):
        config = AutoConfig.from_pretrained(model, trust_remote_code=False)
    if auto_class(config) is None:
        raise UnsupportedModel(model, f"transformers has no causal language model of the type {config.model_type}")
    # a decoder saved alone counts its positions from the longest row of a batch
    if config.is_encoder_decoder or config.get_text_config().model_type in WITH_ENCODERS:
        raise UnsupportedModel(model, f"it is an encoder with a decoder ({config.model_type}), and continues no prompt")
    return config


def auto_class(config: Any) -> Any:
    """Returns transformers' class that makes a model of this configuration, or None if it cannot read text alone.

    A model of several media without a causal LM of its own is loaded whole, and its other parts stay unused.
    """
    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        return AutoModelForCausalLM
    return AutoModelForImageTextToText if type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING else None


def text_part(model: Any) -> Any:
    """Returns the causal LM within a Mistral 3, which our fused forward pass may compute; other models as they are."""
    config = model.config.get_text_config()
    if model.config.model_type != "mistral3" or type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return model
    with torch.device("meta"):
        part = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)](config)
    part.model, part.lm_head = model.model.language_model, model.lm_head
    part.generation_config = model.generation_config
    return part


@contextmanager
def as_unsupported(model: str) -> Iterator[None]:
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

    transformers fills missing and misshapen weights with random numbers, leaves unknown ones out, and reports no tied
    ones. Beside quantised weights, unknown tensors are allowed, because each method names further tensors as it likes.
    """
    if missing := sorted(found["missing_keys"]):
        raise UnsupportedModel(model, f"its files lack {_some(missing)}")
    if mismatched := sorted(found["mismatched_keys"]):
        name, stored, expected = mismatched[0]
        raise UnsupportedModel(model, f"its {name} has the shape {[*stored]} where its config.json means {[*expected]}")
    unused = (STORED_BUFFERS, OTHER_MEDIA)
    unexpected = sorted(name for name in found["unexpected_keys"] if not any(each.search(name) for each in unused))
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
