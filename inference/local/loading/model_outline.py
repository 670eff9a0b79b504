"""Describes how a model would be served, from its small files: it is made without weights, on torch's meta device."""

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import GenerationConfig
from transformers.quantizers.auto import AutoHfQuantizer
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from inference.engine_errors import ShownByLoading, UnsupportedModel
from inference.local.kv.attention_windows import described
from inference.local.kv.kv_budget import KvLayout
from inference.local.loading.adapter_loading import check_fit
from inference.local.loading.cache_layout import UNBOUNDED, served_layout
from inference.local.loading.checkpoint import (
    as_unsupported,
    auto_class,
    one_line,
    read_config,
    require_whole,
    text_part,
)
from inference.local.loading.model_loading import add_tokenizers_end, end_ids
from inference.model_directory.adapter_files import AdapterFiles
from inference.model_directory.model_checks import PLACER, quantisation
from inference.model_directory.model_files import read_header, read_json
from inference.model_directory.model_tokenizer import load_tokenizer
from inference.model_directory.model_weights import cpu_dtype, weight_files

ATEN = torch.ops.aten
READS = (ATEN.item.default, ATEN._local_scalar_dense.default, ATEN.is_nonzero.default)
STORED_DTYPES = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}


@dataclass(frozen=True, slots=True)
class ModelOutline:
    """A model as an engine would serve it; no weight was read."""

    layers: str
    quantisation: str | None
    end_tokens: tuple[str, ...]  # each end token as its id and its text
    max_positions: int
    layout: KvLayout
    weight_bytes: int
    misfits: tuple[str, ...]  # why some adapters cannot be served beside it

    @property
    def bounded(self) -> bool:
        """Whether the configuration limits the positions."""
        return self.max_positions < UNBOUNDED


def outline_model(model: str, device: torch.device, dtype: str, adapters: Iterable[AdapterFiles] = ()) -> ModelOutline:
    """Describes the model of a directory or hub id; raises UnsupportedModel and UnreadableModel, as loading does.

    Only loading shows whether decoding is right. Raises ShownByLoading for a model that does not run without data.
    """
    set_verbosity_error()
    disable_progress_bar()
    config, known = read_config(model), load_tokenizer(model)
    method, _ = quantisation(read_json(model, "config.json"))
    with as_unsupported(model), torch.device("meta"):
        made = auto_class(config).from_config(config, dtype=_stated_dtype(model, config), trust_remote_code=False)
        made.set_experts_implementation("batched_mm")  # its shapes do not depend on which experts are chosen
        made.eval()
    if method is None:
        _check_stored(model, made)
    else:
        _check_quantiser(model, config, device)
    made = text_part(made)
    try:
        if dtype != "auto":
            made = made.to(getattr(torch, dtype))
        elif device.type == "cpu" and method is None:
            made = made.to(getattr(torch, cpu_dtype(made.num_parameters())[0]))
        if generation := read_json(model, "generation_config.json"):
            made.generation_config = GenerationConfig.from_dict(generation)
        add_tokenizers_end(model, made, known)
        with _ReadAsZero():  # type: ignore[no-untyped-call]
            layout, max_positions = served_layout(made, Path(model).name)
    except UnsupportedModel:
        raise
    except Exception as error:  # a model that transformers makes may fail in any way
        raise ShownByLoading(model, one_line(error)) from error
    files = [file.stat().st_size for file in weight_files(Path(model)) if file.is_file()]
    made_bytes = sum(weight.nbytes for weight in (*made.parameters(), *made.buffers()))
    return ModelOutline(
        layers=described(layout.kinds, layout.windows),
        quantisation=method,
        end_tokens=tuple(f"{end} {known.tokenizer.id_to_token(end) or '?'}" for end in sorted(end_ids(made))),
        max_positions=max_positions,
        layout=layout,
        weight_bytes=sum(files) if method and files else made_bytes,
        misfits=tuple(str(misfit) for files in adapters if (misfit := _misfit(files, made))),
    )


def _misfit(adapter: AdapterFiles, made: Any) -> UnsupportedModel | None:
    try:
        check_fit(adapter, made)
    except UnsupportedModel as error:
        return error
    return None


class _ReadAsZero(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lets models that look at the numbers in their input read 0 from tensors without data."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation; one that reads a number returns False, which is 0 in every type."""
        return False if func in READS and args[0].is_meta else func(*args, **(kwargs or {}))


def _check_stored(model: str, made: Any) -> None:
    """Raises UnsupportedModel if the weights that the files name are not those of the model, as loading does."""
    files = [file for file in weight_files(Path(model)) if file.is_file()]
    if not files or find_spec(PLACER) is None:  # transformers needs this package to load without data
        return
    with as_unsupported(model):
        stored = {
            name: torch.empty(tensor["shape"], dtype=STORED_DTYPES.get(tensor["dtype"]), device="meta")
            for file in files
            for name, tensor in read_header(file).items()
        }
        _, found = type(made).from_pretrained(
            None,
            config=made.config,
            state_dict=stored,
            device_map={"": "meta"},
            trust_remote_code=False,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    require_whole(model, found, quantised=False)


def _check_quantiser(model: str, config: Any, device: torch.device) -> None:
    """Raises UnsupportedModel if this machine lacks what the quantisation of the weights needs."""
    stated = config.quantization_config if hasattr(config, "quantization_config") else None
    if isinstance(stated, dict):
        with as_unsupported(model):
            quantiser = AutoHfQuantizer.from_config(dict(stated), pre_quantized=True)
            quantiser.validate_environment(device_map={"": device}, weights_only=True)


def _stated_dtype(model: str, config: Any) -> torch.dtype:
    """Returns the data type that `from_pretrained` takes: that of the configuration, or of the weight files."""
    stated: torch.dtype | None = config.dtype or config.get_text_config().dtype
    if stated is None:
        headers = (read_header(file) for file in weight_files(Path(model)) if file.is_file())
        stored = (STORED_DTYPES.get(tensor["dtype"]) for header in headers for tensor in header.values())
        stated = next(filter(None, stored), torch.float32)
    return stated
