"""Loads a causal LM of transformers, and checks before serving that cached decoding gives the model's own logits."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from inference.accelerator import graph_recorder, has_own_memory
from inference.engine_errors import InferenceError, UnsupportedModel
from inference.local.forward.adapters import NO_ADAPTERS, Adapters
from inference.local.forward.decode_attention import fastest_attention
from inference.local.forward.fused_model import FusedModel, fusible
from inference.local.forward.linear_weights import WeightForm, fastest_form
from inference.local.forward.local_window import window_by_row
from inference.local.forward.longrope import Longrope, rotate_by_row
from inference.local.forward.query_scale import scale_by_row
from inference.local.kv.kv_budget import KvLayout
from inference.local.kv.pages import PageKernels
from inference.local.loading.adapter_loading import load_adapters
from inference.local.loading.cache_layout import served_layout
from inference.local.loading.checkpoint import Quantize, one_line, read_checkpoint
from inference.local.loading.decoding_check import (
    ELSEWHERE,
    PAST,
    DecodingCheck,
    checked_batches,
    own_logits,
    reads_pages,
    thresholds,
    unless_memory_lacks,
)
from inference.local.tokens.format_masks import FormatMasks, load_format_masks
from inference.model_directory.adapter_files import AdapterFiles, read_adapters
from inference.model_directory.model_checks import check_model
from inference.model_directory.model_files import read_json
from inference.model_directory.model_tokenizer import ModelTokenizer, load_tokenizer


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
    suppressed_ids: tuple[int, ...] = ()  # no answer has these tokens
    format_masks: FormatMasks | None = None  # None: answers cannot be constrained to a format
    longrope: Longrope | None = None  # how rows of a model with longrope are prefilled
    adapters: Adapters = NO_ADAPTERS
    slowed_by: str = ""  # why a GPU's kernels or graphs do not compute decoding steps; "": they do, or there are none
    unchecked: tuple[int, ...] = ()  # lengths beyond which rows are computed differently, but were not checked

    @property
    def delta_bytes(self) -> int:
        """Δ: bytes of KV cache that one token takes (Magnus Eq. 1)."""
        return self.layout.token_bytes

    @property
    def longest_row_bytes(self) -> int:
        """The bytes of KV cache that a row takes if it fills the model's context."""
        return self.layout.row_bytes(self.max_positions)

    @property
    def fused(self) -> bool:
        """Whether a FusedModel runs the forward passes; no other decoder reads a KV cache in blocks."""
        return self.decoder is not self.model

    @property
    def in_blocks(self) -> bool:
        """Whether the KV cache of continuous batches is in blocks, which hold tokens of all layers."""
        return self.fused and self.layout.alike

    @property
    def by_pages(self) -> bool:
        """Whether decoding steps read the KV cache by pages, with kernels of the device."""
        return reads_pages(self.decoder)

    @property
    def repeats_passes(self) -> bool:
        """Whether decoding steps are repeated by graphs of the device."""
        return self.fused and self.decoder.graphs is not None

    @property
    def runs_ahead(self) -> bool:
        """Whether the device may compute a pass before the host has read the tokens of the last one.

        Not if it shares the host's memory; nor for models that compute rows again (longrope), or keep states, which a
        token that is thrown away would change.
        """
        return has_own_memory(self.device) and self.longrope is None and not self.layout.state_bytes

    @property
    def mixes_passes(self) -> bool:
        """Returns whether a pass over blocks may compute several tokens of a row: not with windows or longrope."""
        return self.fused and not self.layout.windows and self.longrope is None


def load_model(
    model: str, device: str = "cpu", dtype: str = "auto", quantize: Quantize | None = None, adapters: str | None = None
) -> LoadedModel:
    """Loads a model directory or hub id; raises UnsupportedModel, UnreadableModel or QuantizationUnavailable.

    `adapters` is the directory of the adapters beside it. The dtype "auto" means the choice of `cpu_dtype` on a CPU,
    and the data type of the weight files on a GPU.
    """
    check_model(model)
    beside = () if adapters is None else read_adapters(adapters).values()
    known = load_tokenizer(model)
    read = read_checkpoint(model, torch.device(device), dtype, quantize)
    add_tokenizers_end(model, read, known)
    loaded = prepare_model(read, known.tokenizer, name=Path(model).name)
    return add_adapters(loaded, beside)


def add_adapters(loaded: LoadedModel, adapters: Iterable[AdapterFiles]) -> LoadedModel:
    """Returns the model with these adapters beside it; raises UnsupportedModel."""
    beside = load_adapters(loaded.model, loaded.decoder, adapters)
    unsure = beside.names and not loaded.fused
    check = DecodingCheck(loaded.decoder, loaded.layout, loaded.longrope)
    if unsure and (fault := check.fault_with(beside)):
        raise UnsupportedModel(loaded.name, f"with adapters, {fault}")
    return replace(loaded, adapters=beside)


def add_tokenizers_end(model: str, loaded: Any, known: ModelTokenizer) -> None:
    """Takes the tokenizer's end of sequence if no configuration states one; transformers may know only a default."""
    config = read_json(model, "config.json")
    parts = (read_json(model, "generation_config.json"), config, config.get("text_config") or {})
    if known.eos_id is not None and all(part.get("eos_token_id") is None for part in parts):
        loaded.generation_config.eos_token_id = known.eos_id


def end_ids(model: Any) -> frozenset[int]:
    """Returns the tokens that end an answer; a model of several media may state them for its text alone."""
    parts = (model.generation_config, model.config, model.config.get_text_config())
    stated = (_ids(getattr(part, "eos_token_id", None)) for part in parts)
    return frozenset(next(filter(None, stated), ()))


def prepare_model(model: Any, tokenizer: Any, name: str) -> LoadedModel:
    """Prepares a model in memory for serving; raises UnsupportedModel if the engine would compute wrong answers."""
    model.eval()
    _try_its_own_pass(model, name)
    try:
        form: WeightForm = "row-major"
        # an output layer that shares the embedding's weight stays row-major
        embedding = model.get_input_embeddings().weight
        linears = [each for each in model.modules() if type(each) is torch.nn.Linear and each.weight is not embedding]
        if model.device.type == "cpu" and linears:
            largest = max((linear.weight.data for linear in linears), key=torch.numel)
            form = fastest_form(largest, packable=fusible(model))
        for linear in linears if form == "column-major" else ():
            linear.weight.data = linear.weight.data.t().contiguous().t()  # shape and values do not change
        return _prepare(model, tokenizer, name, packed=form == "packed")
    except (InferenceError, torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:  # a model that transformers makes may fail in any way
        why = f"its forward pass takes no prepared mask and cache: {one_line(error)}; {ELSEWHERE}"
        raise UnsupportedModel(name, why) from error


@torch.inference_mode()
def _try_its_own_pass(model: Any, name: str) -> None:
    """Raises UnsupportedModel if the model computes no token by itself, before anything else is asked of it."""
    try:
        model(torch.zeros(1, 1, dtype=torch.long, device=model.device))
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:  # a model that transformers makes may fail in any way
        raise UnsupportedModel(name, f"its own forward pass fails: {one_line(error)}") from error


def _prepare(model: Any, tokenizer: Any, name: str, packed: bool) -> LoadedModel:
    eos_ids = end_ids(model)
    layout, max_positions = served_layout(model, name)
    own: list[tuple[list[list[int]], list[torch.Tensor]]] = []
    for batch in checked_batches(model, max_positions):
        with unless_memory_lacks(batch):
            own.append((batch, [own_logits(model, prompt) for prompt in batch]))
    vocabulary = own[0][1][0].shape[-1]
    pad_ids = (*_ids(model.generation_config.pad_token_id), *sorted(eos_ids), 0)
    weight_bytes = sum(weight.nbytes for weight in (*model.parameters(), *model.buffers()))
    parameters = model.num_parameters()
    scale_by_row(model)
    window_by_row(model)
    decoder = model
    if fusible(model):
        attend = fastest_attention(layout, model.config.num_attention_heads)
        decoder = FusedModel(model, attend, packed, layout.kinds, layout.windows)
    loaded = LoadedModel(
        model=model,
        decoder=decoder,
        tokenizer=tokenizer,
        name=name,
        device=model.device,
        layout=layout,
        eos_ids=eos_ids,
        pad_id=next(one for one in pad_ids if 0 <= one < vocabulary),
        max_positions=max_positions,
        weight_bytes=weight_bytes,
        parameters=parameters,
        suppressed_ids=tuple(one for one in _ids(model.generation_config.suppress_tokens) if 0 <= one < vocabulary),
        format_masks=load_format_masks(tokenizer, vocabulary, eos_ids),
        longrope=rotate_by_row(model),
    )
    check, unchecked = DecodingCheck(decoder, layout, loaded.longrope), thresholds(model, max_positions)
    for batch, logits in own:
        with unless_memory_lacks(batch):
            if fault := check.fault(batch, logits):
                raise UnsupportedModel(name, fault)
            unchecked = [each for each in unchecked if each + PAST != len(batch[-1])]
    loaded = replace(loaded, unchecked=tuple(unchecked))
    if not has_own_memory(loaded.device):
        return loaded
    slowed_by = lacking_kernels(loaded.fused, layout)
    return replace(
        loaded,
        slowed_by=slowed_by or check.let_read_pages(page_kernels(), graph_recorder(loaded.device), *own[0]),
    )


def lacking_kernels(fused: bool, layout: KvLayout) -> str:
    """Returns why torch's operations compute a GPU's decoding steps, "" if kernels over pages may compute them."""
    if not fused:
        return "without kernels: transformers' own layers compute this architecture"
    if layout.windows or len({*layout.shapes}) > 1:
        return "without kernels: its layers have windows"
    return "" if find_spec("triton") else "without kernels: Triton is not installed"


def page_kernels() -> PageKernels:
    """Returns the kernels over pages of a GPU."""
    from inference.local.forward.page_kernels import TritonKernels  # imports Triton

    return TritonKernels()


def _ids(value: int | Iterable[int] | None) -> tuple[int, ...]:
    """Returns the token ids in an entry of a generation config, which may have none, one or several, or -1 for none."""
    found = () if value is None else (value,) if isinstance(value, int) else value
    return tuple(one for one in found if one >= 0)
