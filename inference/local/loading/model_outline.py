"""Describes how a model would be served, from its small files: it is made without weights, on torch's meta device."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.utils.logging import set_verbosity_error

from inference.engine_errors import ShownByLoading, UnsupportedModel
from inference.local.forward.attention_windows import described
from inference.local.kv.kv_budget import KvLayout
from inference.local.loading.adapter_loading import check_fit
from inference.local.loading.cache_layout import UNBOUNDED, served_layout
from inference.local.loading.checkpoint import one_line, read_config
from inference.local.loading.model_loading import add_tokenizers_end, end_ids
from inference.model_directory.adapter_files import AdapterFiles
from inference.model_directory.model_checks import quantisation
from inference.model_directory.model_files import read_json
from inference.model_directory.model_tokenizer import load_tokenizer
from inference.model_directory.model_weights import cpu_dtype, read_header, weight_files

ATEN = torch.ops.aten
READS = (ATEN.item.default, ATEN._local_scalar_dense.default, ATEN.is_nonzero.default)
STORED_DTYPES = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}


@dataclass(frozen=True, slots=True)
class ModelOutline:
    """A model as an engine would serve it; no weight was read."""

    layers: str
    quantisation: str | None
    end_tokens: tuple[str, ...]  # each with its id
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

    Only loading shows whether all weights are there and whether decoding is right. Raises ShownByLoading for a model
    that does not run without data.
    """
    set_verbosity_error()
    config, known = read_config(model), load_tokenizer(model)
    method, _ = quantisation(read_json(model, "config.json"))
    try:
        made = _without_weights(config, _stated_dtype(model, config))
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
    """Reads 0 from tensors without data, where a model asks what its input is."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation; reading a number gives 0, as False, which may stand for each type."""
        return False if func in READS and args[0].is_meta else func(*args, **(kwargs or {}))


def _without_weights(config: Any, dtype: torch.dtype) -> Any:
    with torch.device("meta"):
        made = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False)
    made.set_experts_implementation("batched_mm")  # the one whose shapes do not depend on which experts are chosen
    return made.eval()


def _stated_dtype(model: str, config: Any) -> torch.dtype:
    """Returns the data type that `from_pretrained` takes: that of the configuration, or of the weight files."""
    stated: torch.dtype | None = config.dtype or config.get_text_config().dtype
    if stated is None:
        headers = (read_header(file) for file in weight_files(Path(model)) if file.is_file())
        stored = (STORED_DTYPES.get(tensor["dtype"]) for header in headers for tensor in header.values())
        stated = next(filter(None, stored), torch.float32)
    return stated
