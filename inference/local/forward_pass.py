"""The two forward passes of decoding, as functions of a model and tensors: `prefill` and `decode_one_token`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from inference.local.kv_cache import KvCache


@dataclass(slots=True)
class Cursor:
    """Where each row of a running batch stands, on the device, so that a step moves nothing from the host."""

    tokens: Tensor  # [rows, 1] the last token of each row, not in the cache yet
    positions: Tensor  # [rows, 1] the column that it goes to, which is its position as well
    slots: Tensor  # [rows * heads] where its keys and values go
    mask: Tensor  # [rows, 1, 1, columns] 0 where a row may look, the dtype's minimum elsewhere
    advance: Tensor  # [rows, 1] 1 for rows that go on, 0 for ended rows that keep their place
    lengths: Sequence[int]  # positions as they were at first
    width: int  # columns that the longest row fills

    @classmethod
    def at(cls, kv: KvCache, tokens: Sequence[int], positions: Sequence[int], running: Sequence[bool]) -> "Cursor":
        """The cursor of rows 0, 1, ... from what the host knows of them."""
        layout, device = kv.layout, kv.layout.device
        at = torch.tensor(positions, device=device)[:, None]
        lanes = torch.arange(len(tokens) * layout.heads, device=device).view(-1, layout.heads)
        hidden = torch.arange(kv.columns, device=device) >= at
        return cls(
            tokens=torch.tensor(tokens, device=device)[:, None],
            positions=at,
            slots=(lanes * kv.columns + at).view(-1),
            mask=hidden.to(layout.dtype).mul_(torch.finfo(layout.dtype).min)[:, None, None, :],
            advance=torch.tensor(running, device=device).long()[:, None],
            lengths=positions,
            width=max(positions),
        )

    def move(self) -> None:
        """One token further."""
        self.positions += self.advance
        self.slots.view(len(self.positions), -1).add_(self.advance)


def prefill(model: Any, kv: KvCache, rows: Sequence[int], prompts: Sequence[Sequence[int]], pad_id: int) -> Tensor:
    """Fill the cache's `rows` with prompts, padded behind to one length; logits [rows, vocabulary] of the next token.

    A causal model looks at nothing that comes later, so padding behind a prompt needs no mask.
    """
    device = kv.layout.device
    length = max(map(len, prompts))
    tokens = torch.tensor([[*prompt, *[pad_id] * (length - len(prompt))] for prompt in prompts], device=device)
    last = torch.tensor([[len(prompt) - 1] for prompt in prompts], device=device)
    kv.write_prefill(rows, length)
    positions = torch.arange(length, device=device)[None, :]
    output = model(tokens, position_ids=positions, past_key_values=kv, use_cache=True, logits_to_keep=last)
    return cast(Tensor, output.logits)[:, -1]


def decode_one_token(model: Any, kv: KvCache, cursor: Cursor) -> Tensor:
    """Feed each row its last token: logits [rows, vocabulary] of the next one; the cursor moves on."""
    cursor.width += 1
    cursor.mask.view(len(cursor.tokens), -1).scatter_(1, cursor.positions, 0)
    width = kv.write_decode(cursor.slots, cursor.lengths, cursor.width)
    mask = cursor.mask[..., :width]
    output = model(
        cursor.tokens, attention_mask=mask, position_ids=cursor.positions, past_key_values=kv, use_cache=True
    )
    cursor.move()
    return cast(Tensor, output.logits)[:, -1]
