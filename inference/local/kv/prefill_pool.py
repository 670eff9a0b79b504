"""A row in the pool of joiners: its prompt is prefilled in pieces, between which the running rows get their tokens.

BATON (4.2) prefills waiting queries apart from the running batch and then embeds their keys and values in its cache.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from inference.accelerator import to_device
from inference.local.batch_rows import BatchRow
from inference.local.forward.attention_windows import Window
from inference.local.kv.kv_cache import KvCache, RowCopy


class PooledRow(Cache):  # type: ignore[misc]  # transformers is untyped
    """The keys and values of one row beside the running batch's cache, for as long as its prefill lasts."""

    def __init__(self, kv: KvCache, row: BatchRow, shared: Sequence[int]) -> None:
        """Copies the row's beginning from the blocks that it will share, unless they are evicted meanwhile."""
        super().__init__(layers=[])
        self.layout, self.row, self.token_ids = (layout := kv.layout), row, row.token_ids
        self.found = len(shared) * kv.arrangement.block_tokens  # tokens at the beginning that were cached
        self.prefilled = self.found  # tokens whose keys and values are known
        self.seconds = 0.0  # the time that its prefill has taken
        self.nbytes = layout.row_bytes(len(self.token_ids))
        # each layer's keys and values of all tokens, or of those of its window that are known
        self._layers = [
            tuple(
                torch.empty(1, of.heads, tokens, dim, dtype=layout.dtype, device=layout.device)
                for dim in (shape.key_dim, shape.value_dim)
            )
            for shape, of in zip(layout.shapes, layout.slots, strict=True)
            for tokens in [0 if of.most_tokens else len(self.token_ids)]
        ]
        if shared:
            blocks = to_device([shared], layout.device)
            for layer, sides in enumerate(self._layers):
                for side, cached in zip(sides, kv.gathered(layer, blocks), strict=True):
                    side[:, :, : self.found] = cached
        # how FusedModel reads this cache: whole, not in blocks
        self.pieces: list[Any] = []
        self.query_groups = self.pages = None

    @property
    def left(self) -> int:
        """The number of tokens that are still to be prefilled."""
        return len(self.token_ids) - self.prefilled

    def prefill(self, model: Any, count: int) -> Tensor:
        """Computes the next `count` tokens; returns the last one's logits, or with prompt_logprobs those of all."""
        first, dtype, device = self.prefilled, self.layout.dtype, self.layout.device
        mask = torch.full((count, first + count), torch.finfo(dtype).min, dtype=dtype, device=device)
        positions = torch.arange(first, first + count, device=device)[None, :]

        def held(window: Window) -> tuple[slice, Tensor]:
            """Returns the columns of these tokens and of the window's tokens in front of them, and their positions."""
            oldest = max(0, first - window.tokens)
            return slice(oldest, None), torch.arange(oldest, first + count, device=device)

        kept = {} if self.row.sequence.prompt_logprobs else {"logits_to_keep": to_device([[count - 1]], device)}
        logits: Tensor = model(
            to_device([self.token_ids[first : first + count]], device),
            attention_mask=self.layout.attention_mask(mask.triu_(first + 1)[None, None], positions, held),
            position_ids=positions,
            past_key_values=self,
            use_cache=True,
            **kept,
        ).logits
        self.prefilled += count
        return logits.flatten(0, -2)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Writes the states [1, heads, tokens, dim] of a layer; returns keys and values from its window's begin on."""
        keys, values = self._layers[layer_idx]
        if most := self.layout.slots[layer_idx].most_tokens:
            keys, values = torch.cat([keys, key_states], 2), torch.cat([values, value_states], 2)
            self._layers[layer_idx] = keys[:, :, -most:].clone(), values[:, :, -most:].clone()
            return keys, values
        upto = self.prefilled + key_states.shape[2]
        keys[:, :, self.prefilled : upto], values[:, :, self.prefilled : upto] = key_states, value_states
        return keys[:, :, :upto], values[:, :, :upto]

    def as_row(self) -> RowCopy:
        """Returns the keys and values in the form that `KvCache.write_row` writes to a row."""
        return [(keys[0], values[0]) for keys, values in self._layers if keys.shape[1]]

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """Returns the position of the piece's first token."""
        return self.prefilled

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Returns the columns that attention reads, and the first one."""
        return self.prefilled + query_length, 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Returns 0, because our forward passes get their positions as an argument."""
        return 0
