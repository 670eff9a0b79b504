"""The forward passes of an engine, as functions of a model and tensors; they choose no tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from inference.local.kv.kv_cache import KvCache


@dataclass(slots=True)
class Cursor:
    """The next decoding step's inputs for rows 0, 1, ... of the cache, kept on the device from step to step."""

    tokens: Tensor  # [rows, 1] the last token of each row, which is not in the cache yet
    positions: Tensor  # [rows, 1] its position in the sequence, which is also its column in the cache
    slots: dict[int, Tensor]  # by head count: [rows * heads] the slots of its keys and values
    mask: Tensor  # [rows, 1, 1, columns] 0 where a row attends, the dtype's minimum elsewhere
    increments: Tensor  # [rows, 1] 1 for running rows, 0 for finished rows, which do not grow
    initial_positions: Sequence[int]  # `positions` before the first step
    width: int  # columns that the longest row fills

    @classmethod
    def from_host(
        cls, kv: KvCache, tokens: Sequence[int], positions: Sequence[int], running: Sequence[bool]
    ) -> "Cursor":
        """Returns a cursor from lists with one entry for each row."""
        layout, device = kv.layout, kv.layout.device
        columns = torch.tensor(positions, device=device)[:, None]
        hidden = torch.arange(kv.arrangement.columns, device=device) >= columns
        return cls(
            tokens=torch.tensor(tokens, device=device)[:, None],
            positions=columns,
            slots=kv.arrangement.slots_at(positions),
            mask=hidden.to(layout.dtype).mul_(torch.finfo(layout.dtype).min)[:, None, None, :],
            increments=torch.tensor(running, device=device).long()[:, None],
            initial_positions=positions,
            width=max(positions),
        )

    def advance(self) -> None:
        """Moves each running row to its next token."""
        self.positions += self.increments
        for heads, slots in self.slots.items():
            slots.view(-1, heads).add_(self.increments)


def prefill(model: Any, kv: KvCache, rows: Sequence[int], prompts: Sequence[Sequence[int]], pad_id: int) -> Tensor:
    """Writes prompts to the cache's `rows`, padded on the right; returns the next tokens' logits, [rows, vocabulary].

    The padding needs no mask, because a causal model does not attend to later tokens. It would go into states, so a
    model that keeps some gets each prompt alone.
    """
    if kv.layout.state_bytes and len(rows) > 1:
        each = zip(rows, prompts, strict=True)
        return torch.cat([prefill(model, kv, [row], [prompt], pad_id) for row, prompt in each])
    device = kv.layout.device
    length = max(map(len, prompts))
    tokens = torch.tensor([[*prompt, *[pad_id] * (length - len(prompt))] for prompt in prompts], device=device)
    last = torch.tensor([[len(prompt) - 1] for prompt in prompts], device=device)
    kv.prepare_prefill(rows, [*map(len, prompts)])
    positions = torch.arange(length, device=device)[None, :]
    output = model(tokens, position_ids=positions, past_key_values=kv, use_cache=True, logits_to_keep=last)
    return cast(Tensor, output.logits)[:, -1]


def prefill_alone(model: Any, kv: KvCache, row: int, prompt: Sequence[int]) -> Tensor:
    """Writes one prompt to the cache; returns logits [tokens, vocabulary], in row i those of token i + 1."""
    device = kv.layout.device
    kv.prepare_prefill([row], [len(prompt)])
    tokens, positions = torch.tensor([prompt], device=device), torch.arange(len(prompt), device=device)[None, :]
    return cast(Tensor, model(tokens, position_ids=positions, past_key_values=kv, use_cache=True).logits)[0]


def decode_one_token(model: Any, kv: KvCache, cursor: Cursor) -> Tensor:
    """Computes each row's last token and advances the cursor; returns the next tokens' logits, [rows, vocabulary]."""
    cursor.width += 1
    cursor.mask.view(len(cursor.tokens), -1).scatter_(1, cursor.positions, 0)
    width = kv.prepare_decode(cursor.slots, cursor.initial_positions, cursor.width)
    mask = kv.layout.attention_mask(cursor.mask[..., :width], cursor.positions)
    output = model(
        cursor.tokens, attention_mask=mask, position_ids=cursor.positions, past_key_values=kv, use_cache=True
    )
    cursor.advance()
    return cast(Tensor, output.logits)[:, -1]
