"""Repeats the parts of a forward pass that depend on nothing but their inputs, each as one graph of the device.

A pass of few tokens launches a dozen kernels between the attentions of two layers, and the host takes longer to launch
them than the device to compute them. A graph launches them all at once. Attention itself has other shapes at each step
and is not recorded.

A graph reads and writes the same memory each time: inputs are copied to where they were when it was recorded, and
outputs are valid until its next call. Numbers of tokens are rounded up, so that few graphs serve all of them; the
results of the additional tokens are never read.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

from torch import Tensor

# The most tokens of a pass that is repeated: with more, the device computes longer than the host launches. Not tuned.
MOST_TOKENS = 64
STEP = 8  # numbers of tokens are rounded up to a multiple of it; smaller steps take more graphs. Not tuned

Part = Callable[..., tuple[Tensor, ...]]


class Recorder(Protocol):
    """Records a function; `inference/accelerator.py` has that of a device."""

    def record(self, compute: Callable[[], tuple[Tensor, ...]]) -> tuple[tuple[Tensor, ...], Callable[[], None]]:
        """Computes once; returns the outputs, and a function that computes them again into the same memory."""
        ...


class StepGraphs:
    """The recorded parts by key and number of tokens."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._kept: dict[tuple[Hashable, int], list[Tensor]] = {}
        self._parts: dict[tuple[Hashable, int], tuple[tuple[Tensor, ...], Callable[[], None]]] = {}

    def keep(self, key: Hashable, given: Sequence[Tensor]) -> list[Tensor]:
        """Returns copies in memory that stays the same for this key, the first dimension of each rounded up."""
        tokens = len(given[0])
        wanted = -(-tokens // STEP) * STEP
        held = self._kept.get((key, wanted))
        if held is None:
            held = self._kept[key, wanted] = [one.new_zeros(wanted, *one.shape[1:]) for one in given]
        for memory, one in zip(held, given, strict=True):
            memory[:tokens].copy_(one)
        return held

    def compute(self, key: Hashable, part: Part, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Returns the outputs of `part`, always in the same memory; its inputs must come from `keep` or `compute`."""
        known = self._parts.get((key, len(inputs[0])))
        if known is None:
            known = self._recorder.record(lambda: part(*inputs))
            self._parts[key, len(inputs[0])] = known
            return known[0]
        outputs, repeat = known
        repeat()
        return outputs
