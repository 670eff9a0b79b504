"""Repeats whole passes of few tokens over pages, each as one graph of the device.

A pass of few tokens launches a dozen kernels a layer, and the host takes longer to launch them than the device to
compute them. A graph launches them all at once. It reads and writes the same memory each time: inputs are copied to
where they were when it was recorded, and outputs are valid until its next call. The table of pages is one of the
inputs, so that one graph serves rows of any lengths.

Numbers of tokens are rounded up, so that few graphs serve all of them. The tokens added have no position: they read and
write no page, and their results are never read.
"""

from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple, Protocol
from weakref import WeakKeyDictionary

from torch import Tensor

from inference.local.kv.kv_cache import KvCache

# The most tokens of a pass that is repeated: with more, the device computes longer than the host launches. Not tuned.
MOST_TOKENS = 256
# Two numbers of tokens for each power of two. More graphs would add fewer tokens, and take longer to record.
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, MOST_TOKENS)
NO_POSITION = -1

States = tuple[Tensor, ...]  # of the last layer, then of some other layers


class PassInputs(NamedTuple):
    """The inputs of a pass over pages, each with one entry for each token."""

    tokens: Tensor  # [tokens]
    positions: Tensor  # [tokens]
    table: Tensor  # [tokens, most], as in `Pages`
    sizes: Tensor  # [tokens]


Pass = Callable[[Tensor, Tensor, Tensor, Tensor], States]


class Recorder(Protocol):
    """Records a function; `inference/accelerator.py` has the recorder of a device."""

    def record(self, compute: Callable[[], States]) -> tuple[States, Callable[[], None]]:
        """Computes once; returns the outputs, and a function that computes them again into the same memory."""


class _Graph(NamedTuple):
    inputs: PassInputs
    outputs: States
    repeat: Callable[[], None]


class StepGraphs:
    """The recorded passes over each cache, by their rounded numbers of tokens."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        # for each cache, how often it was allocated, and the graphs since then by (tokens, columns of the table)
        self._caches: WeakKeyDictionary[KvCache, tuple[int, dict[tuple[int, int], _Graph]]] = WeakKeyDictionary()

    def compute(self, kv: KvCache, compute: Pass, given: PassInputs) -> States:
        """Returns the outputs of a pass over this cache: those of the given tokens, then those of added tokens."""
        allocations, graphs = self._caches.get(kv, (None, {}))
        if allocations != kv.allocations:  # older graphs write to addresses that the cache no longer has
            graphs = {}
            self._caches[kv] = kv.allocations, graphs
        key = rounded(len(given.tokens)), given.table.shape[1]
        graph = graphs.get(key)
        if graph is not None:
            _fill(graph.inputs, given)
            graph.repeat()
            return graph.outputs
        inputs = PassInputs(*(one.new_zeros(key[0], *one.shape[1:]) for one in given))
        _fill(inputs, given)
        outputs, repeat = self._recorder.record(lambda: compute(*inputs))
        graphs[key] = _Graph(inputs, outputs, repeat)
        return outputs


def rounded(tokens: int) -> int:
    """Returns how many tokens the smallest graph for this many tokens has."""
    return SIZES[bisect_left(SIZES, tokens)]


def _fill(memory: PassInputs, given: PassInputs) -> None:
    tokens = len(given.tokens)
    for held, one in zip(memory, given, strict=True):
        held[:tokens].copy_(one)
    memory.positions[tokens:].fill_(NO_POSITION)
