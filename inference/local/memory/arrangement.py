"""Where rows are in the memory of the KV cache: in one block each, which is a rectangle, or in several."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from inference.local.memory.block_tables import BlockTables


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Blocks at the beginning of tensors [slots, dim], and whose they are; a slot is one head's part of a token."""

    heads: int
    device: torch.device
    blocks: int = 0
    block_tokens: int = 0
    tables: BlockTables | None = None  # None: a rectangle, row i has block i

    @property
    def columns(self) -> int:
        """Tokens that a row can hold, in blocks the longest row."""
        return self.block_tokens if self.tables is None else self.tables.columns

    @property
    def taken_tokens(self) -> int:
        """Tokens of all blocks that are not free."""
        return self.block_tokens * (self.blocks if self.tables is None else self.tables.taken)

    def by_block(self, tensor: Tensor) -> Tensor:
        """The [blocks, heads, block tokens, dim] that these blocks have of a tensor of slots."""
        held = tensor[: self.blocks * self.heads * self.block_tokens]
        return held.view(self.blocks, self.heads, self.block_tokens, tensor.shape[-1])

    def slots_at(self, positions: Sequence[int]) -> Tensor:
        """Where row i writes its token at positions[i], [rows * heads]; one more is the next position in its block."""
        size = self.block_tokens
        first = [self._block_of(row, at) * self.heads * size + at % size for row, at in enumerate(positions)]
        heads = torch.arange(self.heads, device=self.device) * size
        return (torch.tensor(first, device=self.device)[:, None] + heads).view(-1)

    def slots_of(self, rows: Sequence[int], lengths: Sequence[int]) -> Tensor:
        """Where these rows' first tokens are, so many each: first by row, then by head."""
        size, heads = self.block_tokens, torch.arange(self.heads, device=self.device)[:, None]
        slots = [torch.empty(0, dtype=torch.long, device=self.device)]
        for row, length in zip(rows, lengths, strict=True):
            if length:
                columns = torch.arange(length, device=self.device)
                blocks = [self._block_of(row, column) for column in range(0, length, size)]
                of_column = torch.tensor(blocks, device=self.device)[columns // size]
                slots.append(((of_column * self.heads + heads) * size + columns % size).view(-1))
        return torch.cat(slots)

    def _block_of(self, row: int, position: int) -> int:
        return row if self.tables is None else self.tables.rows[row][position // self.block_tokens]
