"""The forward pass of Llama and similar architectures in a third of the operations that transformers takes.

A decoding step of few rows is bound by the number of operations, not by arithmetic. So projections of the same input
are one matrix here, the matrix product adds the residual, and rotation takes three operations. No weight is held twice:
the model's own weights become views of the concatenated matrices, or empty once those are packed. Loading checks that
both forward passes give the same logits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from inference.local.forward.adapters import AdaptedWeight, Adapters, LowRank
from inference.local.forward.decode_attention import DecodeAttention, by_kernel
from inference.local.forward.linear_weights import LinearWeight, PackedWeight, PlainWeight
from inference.local.forward.row_attention import CachedAttention, HeadShape, PagedAttention, RowAttention
from inference.local.forward.step_graphs import MOST_TOKENS, PassInputs, States, StepGraphs
from inference.local.kv.attention_windows import Windows
from inference.local.kv.pages import PageKernels, Pages

# `forward` computes Llama, and architectures that differ from it only by biases on q, k and v (Qwen2) or by norms of q
# and k (Qwen3).
ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")

# For each field of `_Layer` that joins linear layers in one matrix, the paths of these layers.
JOINED: dict[str, tuple[str, ...]] = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "output": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}

# The shares of all layers behind which states are kept. By the mean of those behind 18 and 24 of SmolLM2's 30 layers,
# rows that join are ranked with a tau up to 0.01 higher than by those behind 21, the best of single layers.
MIDDLE = 0.6, 0.8


@dataclass(frozen=True, slots=True)
class Logits:
    """The result of a forward pass: [rows, kept tokens, vocabulary]."""

    logits: Tensor


@dataclass(slots=True)
class MiddleStates:
    """The states of each row's last token behind middle layers, [rows, layers, hidden], in passes while `wanted`."""

    wanted: bool = False
    kept: list[Tensor] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Layer:
    """The weights of one layer."""

    kind: str  # the layer's kind of attention, a key of `Windows`
    attention_norm: Tensor
    qkv: LinearWeight  # [(query heads + 2 key heads) * dim, hidden]
    query_norm: Tensor | None  # [dim]; only Qwen3 has norms of queries and keys
    key_norm: Tensor | None
    output: LinearWeight
    mlp_norm: Tensor
    gate_up: LinearWeight  # [2 * intermediate, hidden]
    down: LinearWeight


def fusible(model: Any) -> bool:
    """Returns whether `FusedModel` computes this architecture; only q, k and v may have biases."""
    if type(model).__name__ not in ARCHITECTURES:
        return False
    if 2 * len(model.model.rotary_emb.inv_freq) != model.model.layers[0].self_attn.head_dim:
        return False  # the model rotates only a part of each head
    layers = list(model.model.layers)
    unbiased = [(at.self_attn.o_proj, at.mlp.gate_proj, at.mlp.up_proj, at.mlp.down_proj) for at in layers]
    qkv = [(at.self_attn.q_proj, at.self_attn.k_proj, at.self_attn.v_proj) for at in layers]
    return all(type(linear) is nn.Linear for linear in chain(*unbiased, *qkv, [model.lm_head])) and all(
        linear.bias is None for linear in chain(*unbiased, [model.lm_head])
    )


class FusedModel(nn.Module):
    """Takes the place of the model from which it was made when `prefill` and `decode_one_token` call a model."""

    def __init__(
        self,
        model: Any,
        attend: DecodeAttention = by_kernel,
        packed: bool = False,
        kinds: Sequence[str] = (),
        windows: Windows | None = None,
    ) -> None:
        """Takes the weights of `model`; the function `attend` computes the attention of decoding steps.

        `kinds` has the kind of attention of each layer; `windows` has the window of each kind, if any layer has one.

        If `packed`, the weights are packed and those of the model's linear layers become empty. An output layer that
        shares the embedding's weight keeps it, and is packed as a copy.
        """
        super().__init__()
        self._attend_one = attend
        stack, attention = model.model, model.model.layers[0].self_attn
        dim: int = attention.head_dim
        self._shape = HeadShape(attention.q_proj.out_features // dim, attention.k_proj.out_features // dim, dim)
        self._epsilon: float = stack.norm.variance_epsilon
        self._embedding, self._norm = stack.embed_tokens.weight.data, stack.norm.weight.data
        self._head = _head_weight(model, packed)
        self._activate = stack.layers[0].mlp.act_fn
        self._rotation = stack.rotary_emb
        self._sign = torch.ones(dim, device=model.device, dtype=model.dtype)
        self._sign[: dim // 2] = -1  # the half that rotation subtracts
        self._windows: Windows = windows or {"": None}
        of_layers = kinds if windows else [""] * len(stack.layers)
        self._layers = [_fuse(layer, kind, packed) for layer, kind in zip(stack.layers, of_layers, strict=True)]
        self._adapters: Adapters | None = None
        self.kernels: PageKernels | None = None  # computes passes over pages, if the device has such kernels
        self.graphs: StepGraphs | None = None  # repeats passes of few tokens over pages
        self._middle = {round(share * len(self._layers)) - 1 for share in MIDDLE}
        self.middle_states = MiddleStates()

    def adapt(self, adapters: Adapters, added: Mapping[str, Mapping[str, LowRank]]) -> None:
        """Lets adapters change linear layers; `added` has their matrices by path, that of the first joined layer."""
        self._adapters = adapters
        for number, layer in enumerate(self._layers):
            paths = {part: f"model.layers.{number}.{modules[0]}" for part, modules in JOINED.items()}
            changed: dict[str, Any] = {
                part: AdaptedWeight(getattr(layer, part), adapters, added[path])
                for part, path in paths.items()
                if path in added
            }
            self._layers[number] = replace(layer, **changed)

    def forward(
        self,
        tokens: Tensor,
        position_ids: Tensor,
        past_key_values: Any,
        attention_mask: Tensor | dict[str, Tensor] | None = None,
        use_cache: bool = True,
        logits_to_keep: Tensor | None = None,
    ) -> Logits:
        """Returns the logits of `tokens`, [rows, length], or only of the columns `logits_to_keep`, [rows, kept].

        A `logits_to_keep` of one dimension has the numbers of the rows to keep, which have one token each. A decoding
        step has one mask for all layers, or one for each kind of attention; a prefill has none.
        """
        rows, length = tokens.shape
        if self.kernels is None or past_key_values.pages is None:
            x, cos, sin = self._begin(tokens, position_ids)
            attention = CachedAttention(past_key_values, self._shape, tokens.shape, cos, sin, self._attend_one)
            x, *middle = self._through_layers(x, attention.masked(attention_mask, self._windows))
        else:
            x, *middle = self._through_pages(self.kernels, tokens, position_ids, past_key_values)
        if self.middle_states.wanted:
            ends = None if length == 1 else logits_to_keep
            last = [_columns(states[: rows * length].view(rows, length, -1), ends)[:, -1] for states in middle]
            self.middle_states.kept.append(torch.stack(last, 1))
        x = x[: rows * length]
        if logits_to_keep is not None and logits_to_keep.dim() == 1:
            x, rows = x.index_select(0, logits_to_keep), len(logits_to_keep)
        else:
            x = _columns(x.view(rows, length, -1), logits_to_keep).reshape(-1, x.shape[-1])
        logits = self._head(functional.rms_norm(x, self._norm.shape, self._norm, self._epsilon))
        return Logits(logits.view(rows, -1, logits.shape[-1]))

    def _through_layers(self, x: Tensor, attend: RowAttention) -> States:
        """Returns the last and the middle layers' states, [tokens, hidden], for the embeddings `x`."""
        middle = list[Tensor]()
        for index, layer in enumerate(self._layers):
            x = self._behind_attention(layer, x, attend(index, layer.kind, self._queries_to_values(layer, x)))
            middle += [x] if index in self._middle else []
        return x, *middle

    def _through_pages(self, kernels: PageKernels, tokens: Tensor, position_ids: Tensor, kv: Any) -> States:
        """Returns the last and the middle layers' states, [tokens or more, hidden], valid until the next call."""
        pages: Pages = kv.pages
        adapted = self._adapters is not None and self._adapters.present is not None
        graphs = None if adapted or len(tokens) > MOST_TOKENS else self.graphs
        tiles = None if graphs else pages.tiles  # a graph is for any rows, whose numbers of tokens differ

        def compute(tokens: Tensor, positions: Tensor, table: Tensor, sizes: Tensor) -> States:
            x, cos, sin = self._begin(tokens[:, None], positions[:, None])
            at = replace(pages, table=table, sizes=sizes, tiles=tiles)
            return self._through_layers(x, PagedAttention(kernels, kv, at, cos, sin, positions))

        given = PassInputs(tokens.view(-1), position_ids.view(-1), pages.table, pages.sizes)
        return compute(*given) if graphs is None else graphs.compute(kv, compute, given)

    def _begin(self, tokens: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the embeddings [rows * length, hidden], and the rotation's cosines and signed sines."""
        x = functional.embedding(tokens.view(-1), self._embedding)
        cos, sin = self._rotation(x, position_ids)
        return x, cos, sin * self._sign

    def _queries_to_values(self, layer: _Layer, x: Tensor) -> Tensor:
        """Returns a layer's queries, keys and values, [rows * length, heads + 2 key heads, dim], not yet rotated."""
        normed = functional.rms_norm(x, self._norm.shape, layer.attention_norm, self._epsilon)
        states = layer.qkv(normed).view(len(x), -1, self._shape.dim)
        if layer.query_norm is None:
            return states
        query, key, value = torch.split(states, [self._shape.heads, self._shape.key_heads, self._shape.key_heads], 1)
        query = functional.rms_norm(query, layer.query_norm.shape, layer.query_norm, self._epsilon)
        key = functional.rms_norm(key, layer.query_norm.shape, layer.key_norm, self._epsilon)
        return torch.cat([query, key, value], 1)

    def _behind_attention(self, layer: _Layer, x: Tensor, attended: Tensor) -> Tensor:
        """Returns the residual [rows * length, hidden] behind a layer; `x` is the residual before its attention."""
        x = layer.output.add_to(x, attended)
        normed = functional.rms_norm(x, self._norm.shape, layer.mlp_norm, self._epsilon)
        gate, up = layer.gate_up(normed).chunk(2, -1)
        return layer.down.add_to(x, self._activate(gate).mul_(up))


def _columns(states: Tensor, columns: Tensor | None) -> Tensor:
    """Returns the states in these columns, [rows, kept], of [rows, length, hidden]; all without `columns`."""
    return states if columns is None else states.gather(1, columns[..., None].expand(-1, -1, states.shape[-1]))


def _fuse(layer: Any, kind: str, packed: bool) -> _Layer:
    norms = [getattr(layer.self_attn, name, None) for name in ("q_norm", "k_norm")]
    query_norm, key_norm = (norm.weight.data if norm is not None else None for norm in norms)
    joined = {
        part: _linear_weight([layer.get_submodule(path) for path in paths], packed) for part, paths in JOINED.items()
    }
    return _Layer(
        kind=kind,
        attention_norm=layer.input_layernorm.weight.data,
        query_norm=query_norm,
        key_norm=key_norm,
        mlp_norm=layer.post_attention_layernorm.weight.data,
        **joined,
    )


def _head_weight(model: Any, packed: bool) -> LinearWeight:
    """Returns the weight of the output layer; packs a copy if it shares the embedding's weight, which must stay plain.

    With 16 rows and the 49,152 tokens of SmolLM2, the packed product took a third of the time in float32 and half in
    bfloat16.
    """
    if packed and model.lm_head.weight is model.model.embed_tokens.weight:
        return PackedWeight(model.lm_head.weight.data)
    return _linear_weight([model.lm_head], packed)


def _linear_weight(projections: Sequence[nn.Linear], packed: bool) -> LinearWeight:
    """Joins the weights of projections, which become empty if `packed`, otherwise views of the joined weight."""
    biases = [projection.bias.data for projection in projections if projection.bias is not None]
    bias = torch.cat(biases) if biases else None
    if packed:
        weight = PackedWeight(torch.cat([projection.weight.data for projection in projections]), bias)
        for projection in projections:
            projection.weight.data = projection.weight.data.new_empty(0)
        return weight
    return PlainWeight(projections[0].weight.data if len(projections) == 1 else _concatenate(projections), bias)


def _concatenate(projections: Sequence[nn.Linear]) -> Tensor:
    """Joins the weights of several projections in one matrix of their memory layout; they become views of it."""
    by_columns = not projections[0].weight.is_contiguous()
    joined = torch.cat([projection.weight.data for projection in projections])
    if by_columns:
        joined = joined.t().contiguous().t()
    parts = torch.split(joined, [projection.out_features for projection in projections])
    for projection, part in zip(projections, parts, strict=True):
        projection.weight.data = part
    return joined
