"""The forward passes of an engine, as functions of a model and tensors; they choose no tokens."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from inference.accelerator import has_own_memory, to_device
from inference.local.forward.adapters import PLAIN_PASS, AdaptedPass
from inference.local.kv.attention_windows import Window
from inference.local.kv.kv_budget import KvLayout, LayerSlots
from inference.local.kv.kv_cache import KvCache
from inference.local.kv.query_groups import token_rows

# The most values of the mask with which prompts attend to their cached beginnings: 16 MB in float32. Without a mask, a
# CPU computes attention of the cached tokens, too, which costs less than their other operations would, unless cached
# tokens are many more than new ones; a GPU needs none for rows that begin alike. Not tuned.
MOST_MASK = 2**22


@dataclass(slots=True)
class Cursor:
    """The next decoding step's inputs for rows 0, 1, ... of the cache, kept on the device from step to step."""

    tokens: Tensor  # [rows, 1] the last token of each row, which is not in the cache yet
    positions: Tensor  # [rows, 1] that token's position in the sequence, which is also its column in the cache
    slots: dict[LayerSlots, Tensor]  # [rows * heads] the slots in the cache for the keys and values of that token
    mask: Tensor  # [rows, 1, 1, columns] 0 where a row has a token, the dtype's minimum elsewhere
    increments: Tensor  # [rows, 1] 1 for running rows, 0 for finished rows, which do not grow
    initial_positions: Sequence[int]  # `positions` before the first step
    width: int  # columns that the longest row fills

    @classmethod
    def of(cls, kv: KvCache, tokens: Tensor, positions: Sequence[int], running: Sequence[bool]) -> "Cursor":
        """Returns a cursor from the rows' newest tokens, [rows] on the device, and from lists of their other inputs."""
        layout, device = kv.layout, kv.layout.device
        columns = to_device(positions, device)[:, None]
        hidden = torch.arange(kv.arrangement.columns, device=device) >= columns
        return cls(
            tokens=tokens[:, None],
            positions=columns,
            slots=kv.arrangement.slots_at(positions),
            mask=hidden.to(layout.dtype).mul_(torch.finfo(layout.dtype).min)[:, None, None, :],
            increments=to_device(running, device, torch.long)[:, None],
            initial_positions=positions,
            width=max(positions),
        )

    def advance(self) -> None:
        """Moves each running row to its next token."""
        self.positions += self.increments
        for of, slots in self.slots.items():
            slots.view(-1, of.heads).add_(self.increments)


def prefill(
    model: Any,
    kv: KvCache,
    rows: Sequence[int],
    prompts: Sequence[Sequence[int]],
    pad_id: int,
    cached: Sequence[int] = (),
    most_mask: int = MOST_MASK,
    adapted: AdaptedPass = PLAIN_PASS,
    every: bool = False,
) -> Tensor:
    """Writes prompts to the cache's `rows`, padded on the right; returns the next tokens' logits, [rows, vocabulary].

    The first cached[i] tokens of a prompt are in the cache and are not computed. Rows whose mask would have more than
    `most_mask` values are computed one by one. With `every`, the logits of all tokens that are computed for the only
    row are returned, [tokens, vocabulary].

    `adapted` has the adapters of the rows. The padding needs no mask, because a causal model does not attend to later
    tokens. But padding would change recurrent states, so a model with such states gets each prompt alone.
    """
    device, starts, layout = kv.layout.device, cached or [0] * len(rows), kv.layout
    computed = [prompt[start:] for prompt, start in zip(prompts, starts, strict=True)]
    length = max(map(len, computed))
    alike = has_own_memory(device) and len({*starts}) == 1  # such rows need no mask
    large = any(starts) and not alike and len(rows) * length * (max(starts) + length) > most_mask
    one_by_one = layout.state_bytes or large or (layout.masks_differ and any(starts))
    if one_by_one and len(rows) > 1:
        each = enumerate(zip(rows, prompts, starts, strict=True))
        alone = (
            prefill(model, kv, [row], [ids], pad_id, [held], most_mask, adapted.of_row(number))
            for number, (row, ids, held) in each
        )
        return torch.cat([*alone])
    tokens = to_device([[*prompt, *[pad_id] * (length - len(prompt))] for prompt in computed], device)
    kept: dict[str, Any] = {"logits_to_keep": to_device([[len(prompt) - 1] for prompt in computed], device)}
    kv.prepare_prefill(rows, [*map(len, prompts)], starts)
    positions = torch.arange(length, device=device)[None, :]
    masked: dict[str, Tensor] = {}
    if any(starts):
        positions = positions + to_device(starts, device)[:, None]
        if layout.masks_differ or not (alike or (large and starts[0] <= 2 * length)):
            masked = {"attention_mask": _mask_behind(starts, length, positions, layout)}
    if every:
        kept = {}
    with adapted:
        logits: Tensor = model(
            tokens, position_ids=positions, past_key_values=kv, use_cache=True, **kept, **masked
        ).logits
    return logits[0] if every else logits[:, -1]


def _mask_behind(starts: Sequence[int], length: int, positions: Tensor, layout: KvLayout) -> Any:
    """Returns the mask, in the model's form, of `length` tokens in each row behind its starts[i] cached tokens.

    It is [rows, 1, length, columns]. Layers with a window, which compute rows one by one, read only its columns.
    """
    cached = torch.arange(max(starts), device=layout.device) >= to_device(starts, layout.device)[:, None]
    later = torch.ones(length, length, dtype=torch.bool, device=layout.device).triu(1)
    each = cached[:, None].expand(-1, length, -1), later.expand(len(starts), -1, -1)
    mask = torch.cat(each, 2)[:, None].to(layout.dtype).mul_(torch.finfo(layout.dtype).min)

    def held(window: Window) -> tuple[slice, Tensor]:
        oldest = max(0, starts[0] - window.tokens)
        return slice(oldest, None), torch.arange(oldest, starts[0] + length, device=layout.device)

    return layout.attention_mask(mask, positions, held)


def decode_one_token(model: Any, kv: KvCache, cursor: Cursor) -> Tensor:
    """Computes each row's last token and advances the cursor; returns the next tokens' logits, [rows, vocabulary]."""
    cursor.width += 1
    columns = cursor.positions if kv.layout.most_tokens is None else cursor.positions % cursor.mask.shape[-1]
    width, mask = kv.prepare_decode(cursor.slots, cursor.initial_positions, cursor.width), None
    if kv.pages is None:  # kernels over pages look at positions
        cursor.mask.view(len(cursor.tokens), -1).scatter_(1, columns, 0)
        mask = kv.attention_mask(cursor.mask[..., :width], cursor.positions)
    output = model(
        cursor.tokens, attention_mask=mask, position_ids=cursor.positions, past_key_values=kv, use_cache=True
    )
    cursor.advance()
    return cast(Tensor, output.logits)[:, -1]


def decode_several_tokens(
    model: Any,
    kv: KvCache,
    tokens: Tensor,
    positions: Sequence[Sequence[int]],
    firsts_only: Collection[int] = (),
) -> Tensor:
    """Computes tokens at positions[i], in any order, for each row i of blocks; returns logits, [tokens, vocabulary].

    `tokens`, [tokens] on the device, are numbered as in `token_rows`, and so are the logits; rows in `firsts_only` get
    only those of their first token. Keys and values of tokens that turn out to be wrong stay hidden behind the end of
    their row until other tokens overwrite them.
    """
    device, dtype, counts = kv.layout.device, kv.layout.dtype, [*map(len, positions)]
    numbered = token_rows(counts)
    at = [positions[row][place] for row, place in numbered]
    slots = kv.arrangement.slots_at(at, [row for row, _ in numbered])
    columns = to_device(at, device)[:, None]
    width, kept = kv.prepare_decode(slots, counts, 0, counts), dict[str, Tensor]()
    if kv.pages is None:  # kernels over pages look at positions
        hidden = torch.arange(width, device=device) > columns
        kept["attention_mask"] = hidden.to(dtype).mul_(torch.finfo(dtype).min)[:, None, None, :]
    if firsts_only:
        needed = [n for n, (row, place) in enumerate(numbered) if not place or row not in firsts_only]
        kept["logits_to_keep"] = to_device(needed, device)
    output = model(tokens[:, None], position_ids=columns, past_key_values=kv, use_cache=True, **kept)
    return cast(Tensor, output.logits)[:, -1]
