"""The memory of the KV cache: the bytes of a token, the budget, and the allocation of the budget."""

import mmap
import os
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from pydantic import ByteSize, TypeAdapter, ValidationError
from torch import Tensor

from inference.accelerator import free_bytes, has_own_memory
from inference.engine_errors import BudgetTooLarge, BudgetTooSmall, UnreadableBudget
from inference.local.kv.attention_windows import HeldTokens, Windows, masks_by_kind

# A rectangle grows by multiples of this number of columns. Each growth moves its rows: smaller steps cost more copies,
# larger steps leave more memory empty. Not tuned.
COLUMN_STEP = 64
# Memory for ten rows of the bundled model by Magnus Eq. (1), with 3,072 bytes a token and 1,024 + 1,024 tokens a row.
# More allows larger batches and takes more of the machine's memory; not tuned.
CPU_BUDGET_BYTES = 64 * 2**20
# States of rows take at most half of a budget, and no more than those of this many rows: more rows seldom run at once,
# and the memory is better used for tokens; not tuned.
MOST_STATES = 256
# On a CPU, "auto" holds a row that fills the model's context, up to this share of the machine's memory; not tuned.
CPU_SHARE = 1 / 8
GPU_SHARE = 0.7  # share of the memory that the weights leave; the rest is for activations (Magnus IV-A)
HUGE_PAGES = getattr(mmap, "MADV_HUGEPAGE", None)  # exists only on Linux


@dataclass(frozen=True, slots=True)
class LayerShape:
    """The heads and dimensions of a token's keys and values in one layer's cache; by default the layer has no cache."""

    heads: int = 0
    key_dim: int = 0
    value_dim: int = 0


class LayerSlots(NamedTuple):
    """The two facts that determine where a layer's tokens are: its heads, and the most tokens of a row that it holds.

    A layer with a window holds as many tokens as its window, and writes each further token over the oldest one.
    """

    heads: int
    most_tokens: int | None = None  # None: the layer holds all tokens


@dataclass(frozen=True)
class KvLayout:
    """The shape of a token in each layer's cache, the bytes of a row's states, and the layers' windows.

    Behind the layers stand the caches of their indexers, which have keys only and the kind INDEXER.

    With `alibi`, the model computes positions from a mask of two dimensions.
    """

    shapes: tuple[LayerShape, ...]  # one for each layer, and then for each indexer
    dtype: torch.dtype
    device: torch.device
    kinds: tuple[str, ...] = ()  # the kind of each of them
    windows: Windows = field(default_factory=dict)  # the window of each kind of layer
    alibi: bool = False
    indexers: Mapping[int, int] = field(default_factory=dict)  # the place of each layer's indexer among the shapes
    max_positions: int = sys.maxsize  # the most tokens of a row
    state_bytes: int = 0  # the bytes of a row's states, which convolutions and linear attention keep instead of tokens

    @property
    def token_bytes(self) -> int:
        """Δ of Magnus Eq. (1): bytes that one token takes; 1 if a model keeps states only."""
        return self.row_bytes(1)

    @cached_property
    def slots(self) -> tuple[LayerSlots, ...]:
        """The LayerSlots of each layer."""
        windows = [self.windows.get(kind) for kind in self.kinds] if self.windows else [None] * len(self.shapes)
        each = zip(self.shapes, windows, strict=True)
        return tuple(LayerSlots(shape.heads, window.tokens if window else None) for shape, window in each)

    @cached_property
    def bytes_by_most(self) -> dict[int | None, int]:
        """By n, a token's bytes in all layers that hold n tokens of a row; None stands for layers that hold all."""
        held: Counter[int | None] = Counter()
        for shape, of in zip(self.shapes, self.slots, strict=True):
            if shape.heads:
                held[of.most_tokens] += shape.heads * (shape.key_dim + shape.value_dim) * self.dtype.itemsize
        return dict(held)

    @property
    def alike(self) -> bool:
        """Whether all layers hold the same tokens of a row."""
        return len(self.bytes_by_most) < 2

    @property
    def masks_differ(self) -> bool:
        """Whether masks depend on layer or positions, so that prompts with cached tokens are computed one by one."""
        return bool(self.windows) or self.alibi

    @property
    def most_tokens(self) -> int | None:
        """The most tokens of a row that any layer holds; None if some layer holds all tokens."""
        return None if None in self.bytes_by_most else max(filter(None, self.bytes_by_most), default=None)

    def row_bytes(self, tokens: int) -> int:
        """Returns the bytes of a row of this many tokens; layers with windows hold only the newest of them."""
        return max(tokens, sum(held * min(tokens, most or tokens) for most, held in self.bytes_by_most.items()))

    def divided(self, budget_bytes: int) -> tuple[int, int | None]:
        """Returns a budget's bytes for tokens, and how many rows' states the rest holds; None: rows have no states."""
        if not self.state_bytes:
            return budget_bytes, None
        rows = max(1, min(MOST_STATES, budget_bytes // 2 // self.state_bytes))
        return max(0, budget_bytes - rows * self.state_bytes), rows

    def windowed(self, block_tokens: int) -> tuple[int, int]:
        """Returns a token's bytes in layers with a window, and how many the blocks of the widest window hold."""
        most = {most: held for most, held in self.bytes_by_most.items() if most is not None}
        return sum(most.values()), -(-max(most, default=0) // block_tokens) * block_tokens

    def first_attended(self, layer: int, position: int) -> int:
        """Returns the first position that a layer's token at this position attends to."""
        window = self.windows.get(self.kinds[layer]) if self.windows else None
        return 0 if window is None else max(0, window.first(position))

    def attention_mask(
        self, mask: Tensor, positions: Tensor, held: HeldTokens
    ) -> Tensor | dict[str, Tensor | None] | None:
        """Returns the model's form of a mask [rows, 1, tokens, columns] of tokens at positions [rows, tokens].

        `held` returns the tokens that layers with a window hold. With `alibi` the result is 1 where the last token
        attends, [rows, columns].
        """
        return (mask[:, 0, -1] == 0).long() if self.alibi else masks_by_kind(self.windows, mask, positions, held)


def zeroed_memory(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns a tensor of zeros, whose pages the system provides on a CPU when they are first written.

    These pages stay while the cache grows. A larger tensor at each growth would cost new pages each time, which took
    seconds of a CPU worker's time when the copies took a tenth of a second (docs/results/engines.md).
    """
    nbytes = rows * columns * dtype.itemsize
    if device.type != "cpu" or not nbytes:
        return torch.zeros(rows, columns, dtype=dtype, device=device)
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if HUGE_PAGES is not None:
        memory.madvise(HUGE_PAGES)
    return torch.frombuffer(memory, dtype=dtype).view(rows, columns)


def kv_budget_bytes(configured: str, device: torch.device, longest_row_bytes: int = 0, unloaded_bytes: int = 0) -> int:
    """Returns Θ of Magnus Eq. (1) in bytes, from a size such as 20GiB or "auto".

    Weights of `unloaded_bytes` are still to be loaded. On a CPU, "auto" holds a row of `longest_row_bytes` as far as
    CPU_SHARE allows. Raises UnreadableBudget, or BudgetTooLarge if the size exceeds the device's memory.
    """
    if configured == "auto":
        if has_own_memory(device):
            return int(GPU_SHARE * max(0, free_bytes(device) - unloaded_bytes))
        return max(CPU_BUDGET_BYTES, min(longest_row_bytes, int(CPU_SHARE * host_memory_bytes())))
    try:
        budget_bytes = int(TypeAdapter(ByteSize).validate_python(configured))
    except ValidationError as error:
        raise UnreadableBudget(configured) from error
    memory_bytes = free_bytes(device) - unloaded_bytes if has_own_memory(device) else host_memory_bytes()
    if budget_bytes > memory_bytes:
        raise BudgetTooLarge(budget_bytes, memory_bytes, str(device))
    return budget_bytes


def host_memory_bytes() -> int:
    """Returns the size of this machine's memory in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def require_a_row(budget_bytes: int, token_bytes: int) -> None:
    """Raises BudgetTooSmall if a row of COLUMN_STEP tokens, the smallest that is allocated, exceeds the budget."""
    if budget_bytes < COLUMN_STEP * token_bytes:
        raise BudgetTooSmall(budget_bytes, COLUMN_STEP, token_bytes)
