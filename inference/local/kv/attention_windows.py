"""Determines which cached tokens the layers of a model attend to: all, a sliding window's or a chunk's.

The KV cache holds a row's newest tokens for a layer with a window, at least as many as the window has. The mask hides
held tokens before the window by their positions, so a window depends on the row's own length only.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers.cache_utils import get_layer_types_and_kwargs

Position = TypeVar("Position", int, Tensor)


@dataclass(frozen=True, slots=True)
class Window:
    """The `tokens` newest tokens, or if `in_chunks` the tokens of the same chunk (Llama 4)."""

    tokens: int
    in_chunks: bool = False

    def first(self, positions: Position) -> Position:
        """Returns the first position that a token at each of these positions attends to; negative if it sees all."""
        return positions // self.tokens * self.tokens if self.in_chunks else positions - self.tokens + 1

    def prefill_mask(self, length: int, device: torch.device) -> Tensor:
        """Returns where tokens of a prefill attend, bool [length, length]."""
        positions = torch.arange(length, device=device)
        return (positions >= self.first(positions)[:, None]) & (positions <= positions[:, None])


INDEXER = "indexer"  # chooses the tokens that a layer attends to (DeepSeek V3.2), and caches keys of its own for that
STATES = ("conv", "linear_attention")  # kinds of layers that keep a state for a row instead of keys and values

Windows = Mapping[str, Window | None]  # the window of each kind of layer, under transformers' name; empty if none


def layer_kinds(config: Any, max_positions: int) -> tuple[list[str], Windows]:
    """Returns the kind of each layer, and the window of each kind: None if it covers all positions."""
    kinds, options = get_layer_types_and_kwargs(config)
    windows: dict[str, Window | None] = {}
    for kind, option in zip(kinds, options, strict=True):
        tokens = option.get("sliding_window") or max_positions
        windows[kind] = Window(tokens, kind == "chunked_attention") if tokens < max_positions else None
    return kinds, windows if any(windows.values()) else {}


# Returns which columns of a mask a layer with this window holds, and the position of the token in each of them,
# [columns] or [rows, tokens, columns].
HeldTokens = Callable[[Window], tuple[slice, Tensor]]


def in_turns(columns: int, most_tokens: int, positions: Tensor) -> tuple[slice, Tensor]:
    """Returns what HeldTokens returns, for columns that are reused in turn: each gets every `most_tokens`-th token.

    The newest tokens are at `positions`, [rows, tokens]. A column without a token has a negative position.
    """
    newest, held = positions[..., None], torch.arange(min(columns, most_tokens), device=positions.device)
    return slice(len(held)), newest - (newest - held) % most_tokens


def masks_by_kind(
    windows: Windows, mask: Tensor, positions: Tensor, held: HeldTokens
) -> Tensor | dict[str, Tensor | None] | None:
    """Returns the attention mask for a model: one mask, or one for each kind of layer.

    `mask`, [rows, 1, tokens, columns], hides from each token the later tokens and the columns without one. The
    tokens are at `positions`, [rows, tokens]. Layers that keep states have no mask.
    """
    if not windows:
        return mask
    masks: dict[str, Tensor | None] = dict.fromkeys(windows, mask)
    for kind, window in windows.items():
        if kind in STATES:
            masks[kind] = None
        elif window is not None:
            columns, held_positions = held(window)
            hidden = (held_positions < window.first(positions)[..., None])[:, None]
            masks[kind] = mask[..., columns].masked_fill(hidden, torch.finfo(mask.dtype).min)
    return masks if len(masks) > 1 else next(iter(masks.values()))


def described(kinds: Sequence[str], windows: Windows) -> str:
    """Returns the layers in words, such as `5 layers attend to windows of 512, 1 to all tokens`."""
    reaches: Counter[str] = Counter()
    others: Counter[str] = Counter()
    for kind in kinds:
        window = windows.get(kind)
        shape = "in chunks" if window is not None and window.in_chunks else "to windows"
        if kind not in (*STATES, "dummy", INDEXER):
            reaches["to all tokens" if window is None else f"{shape} of {window.tokens}"] += 1
        if kind in (*STATES, "hybrid", "hybrid_sliding"):
            others["with a state for each row"] += 1
        if kind == "dummy":
            others["without a cache of its own"] += 1
        if kind == INDEXER:
            others["with an indexer"] += 1
    told = [(count, reach) for reach, count in (*reaches.items(), *others.items())]
    if not told:
        return "no layers"
    first, begun = told[0]
    verb = "" if not reaches else "attends " if first == 1 else "attend "
    layers = "1 layer" if first == 1 else f"{first} layers"
    return ", ".join([f"{layers} {verb}{begun}", *(f"{count} {each}" for count, each in told[1:])])
