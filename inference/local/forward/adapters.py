"""LoRA adapters beside a model: in one forward pass, each row's linear layers are changed by the row's own adapter.

The rows of one adapter are multiplied together: their inputs are taken out of the pass, and their low-rank products are
added to their own outputs alone. To copy an adapter's matrices for each row instead costs 1.7 to 2.1 times as much
(docs/results/engines.md).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import torch
from torch import Tensor

from inference.accelerator import to_device
from inference.local.forward.linear_weights import LinearWeight


@dataclass(frozen=True, slots=True)
class LowRank:
    """An adapter's matrices for one linear layer: x @ down @ up is added to the output for the input x."""

    down: Tensor  # [inputs, rank]
    up: Tensor  # [rank, outputs], with the adapter's scaling


@dataclass(eq=False, slots=True)
class AdaptedPass:
    """Makes a forward pass use adapters while it is entered; `names` has the adapter of each row, "" for none."""

    adapters: "Adapters"
    names: tuple[str, ...]
    _groups: dict[tuple[str, ...], tuple[Tensor, list[int]]] = field(default_factory=dict)

    def __enter__(self) -> None:
        self.adapters.present = self if any(self.names) else None

    def __exit__(self, *_: object) -> None:
        self.adapters.present = None

    def of_row(self, row: int) -> "AdaptedPass":
        """Returns the pass that computes this row alone."""
        return AdaptedPass(self.adapters, self.names[row : row + 1])

    def rows_of(self, names: tuple[str, ...], device: torch.device) -> tuple[Tensor, list[int]]:
        """Returns the indices of these adapters' rows, adapter by adapter, and how many rows each adapter has."""
        if names not in self._groups:
            rows = [[row for row, own in enumerate(self.names) if own == name] for name in names]
            self._groups[names] = to_device([*chain.from_iterable(rows)], device), [*map(len, rows)]
        return self._groups[names]


class Adapters:
    """The adapters of one model by their names, and the pass that runs now."""

    def __init__(self, names: Collection[str] = ()) -> None:
        self.names = frozenset(names)
        self.present: AdaptedPass | None = None
        self._last = AdaptedPass(self, ())

    def serve(self, names: Sequence[str]) -> AdaptedPass:
        """Returns the pass whose row i has the adapter names[i]; decoding steps of the same rows share one pass."""
        if not self.names:
            return self._last
        if self._last.names != (asked := tuple(names)):
            self._last = AdaptedPass(self, asked)
        return self._last

    def add_to(self, outputs: Tensor, x: Tensor, of_layer: Mapping[str, LowRank]) -> Tensor:
        """Adds the products of the rows' adapters with the inputs `x` to a layer's outputs [rows * tokens, outputs]."""
        now = self.present
        names = () if now is None else tuple(sorted({name for name in now.names if name in of_layer}))
        if now is None or not names:
            return outputs
        rows, counts = now.rows_of(names, x.device)
        dtype = of_layer[names[0]].down.dtype
        inputs = x.view(len(now.names), -1, x.shape[-1]).index_select(0, rows).to(dtype)
        products = [
            part.flatten(0, 1) @ of_layer[name].down @ of_layer[name].up
            for name, part in zip(names, torch.split(inputs, counts), strict=True)
        ]
        added = (products[0] if len(products) == 1 else torch.cat(products)).to(outputs.dtype)
        by_row = outputs.view(len(now.names), -1, outputs.shape[-1])
        by_row.index_add_(0, rows, added.view(len(rows), *by_row.shape[1:]))
        return outputs


NO_ADAPTERS = Adapters()
PLAIN_PASS = NO_ADAPTERS.serve(())


class AdaptedWeight:
    """The weight of a linear layer that some adapters change."""

    def __init__(self, weight: LinearWeight, adapters: Adapters, of_layer: Mapping[str, LowRank]) -> None:
        self._weight, self._adapters, self._of_layer = weight, adapters, of_layer

    def __call__(self, x: Tensor) -> Tensor:
        """Multiplies by the weight, adds the bias and the adapters' products."""
        return self._adapters.add_to(self._weight(x), x, self._of_layer)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """Multiplies by the weight, adds the residual and the adapters' products."""
        return self._adapters.add_to(self._weight.add_to(residual, x), x, self._of_layer)
