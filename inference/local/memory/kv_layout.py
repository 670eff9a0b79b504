"""The shape of what is cached for one token."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class KvLayout:
    """A key and a value for each head of each layer."""

    layers: int
    heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def token_bytes(self) -> int:
        """Δ of Magnus Eq. (1): bytes that one token takes."""
        return self.layers * self.heads * (self.key_dim + self.value_dim) * self.dtype.itemsize
