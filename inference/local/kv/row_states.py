"""The states of rows in layers of convolution and linear attention, which keep them instead of keys and values.

A state has the same size whatever the length of its row. Models write new states over old ones, so rows are prefilled
one by one, whole and without padding, which would change their states.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import Cache

_Key = tuple[str, int, int]  # the kind of the state, its layer, and its number within the layer


class RowStates(Cache):  # type: ignore[misc]  # transformers is untyped
    """The part of a cache that gives models the states of rows: of one in a prefill, of the first ones in decoding."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self._held: dict[_Key, Tensor] = {}  # [rows, ...]
        self._rows, self._goes_on = slice(0), False  # the rows of the next forward pass, and whether they have states
        self.prefilled_layers = 0  # grows with each layer that a prefill passes

    def begin_states(self, rows: Sequence[int]) -> None:
        """Prepares a prefill, which computes the states of a row from nothing."""
        self._rows, self._goes_on = slice(rows[0], rows[0] + 1), False

    def continue_states(self, rows: int) -> None:
        """Prepares a decoding step of the first rows."""
        self._rows, self._goes_on = slice(rows), True

    def move_state(self, source: int, target: int) -> None:
        """Gives a row the states of another one."""
        for held in self._held.values():
            held[target] = held[source]

    def drop_states(self) -> None:
        """Frees the memory of all states."""
        self._held.clear()

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """Returns a convolution's newest inputs, None in a prefill; models write into them."""
        return self._read(("convolution", layer_idx, state_idx))

    def update_conv_state(
        self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, conv_kernel_size: int | None = None, **_: Any
    ) -> Tensor:
        """Keeps a convolution's newest inputs, [rows, channels, inputs]; returns them behind the inputs kept before."""
        key = "convolution", layer_idx, state_idx
        held = self._held.get(key)
        kept = held.shape[-1] if held is not None else conv_kernel_size or conv_states.shape[-1]
        before = self._read(key)
        if before is not None:
            conv_states = torch.cat([before, conv_states], -1)
        conv_states = functional.pad(conv_states, (max(0, kept - conv_states.shape[-1]), 0))
        self._write(key, conv_states[..., -kept:])
        return conv_states

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """Returns the states of linear attention, None in a prefill; models write into them."""
        return self._read(("recurrence", layer_idx, state_idx))

    def update_recurrent_state(self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **_: Any) -> Tensor:
        """Keeps the states of linear attention and returns them."""
        return self._write(("recurrence", layer_idx, state_idx), recurrent_states)

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        """Returns whether the rows have states of earlier tokens."""
        return self._goes_on

    def is_recording_past(self, layer_idx: int) -> bool:
        """Returns False, because no token is taken back."""
        return False

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Returns 0, because our forward passes get their positions as an argument."""
        return 0

    def _read(self, key: _Key) -> Tensor | None:
        held = self._held.get(key) if self._goes_on else None
        return None if held is None else held[self._rows]

    def _write(self, key: _Key, states: Tensor) -> Tensor:
        held = self._held.get(key)
        self.prefilled_layers += not self._goes_on
        if held is None or len(held) < self._rows.stop:
            grown = states.new_zeros(max(self._rows.stop, 2 * len(held) if held is not None else 0), *states.shape[1:])
            if held is not None:
                grown[: len(held)] = held
            self._held[key] = held = grown
        held[self._rows] = states
        return held[self._rows]
