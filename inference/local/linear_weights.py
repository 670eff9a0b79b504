"""The weights of linear layers, as a forward pass multiplies by them: plain tensors, or packed by oneDNN.

oneDNN rearranges a plain matrix at each product; packed beforehand it is read as it lies. Which form a CPU multiplies
fastest is measured when a model loads.
"""

from collections.abc import Iterable
from statistics import median
from time import perf_counter
from typing import Literal, Protocol, cast

import torch
from torch import Tensor
from torch.nn import functional

WeightForm = Literal["row-major", "column-major", "packed"]

TRIAL_ROWS = 16  # of a typical decoding step; from 8 to 64 the order of the forms was the same on each CPU
TRIAL_PRODUCTS = 5  # in one timing, so that a tiny weight's products are longer than the clock is coarse; not tuned
TRIALS = 15  # timings of each form, interleaved, for a median that a busy machine does not sway; not tuned
CLEARLY_FASTER = 0.97  # a smaller gain is noise, and each start should choose the same form; not tuned
# A smaller weight stays in a core's cache and gains nothing: 44 µs plain, 40 packed (192 KiB, 16 rows). Any value from
# 0.5 to 2 MiB works.
LEAST_PACKED_BYTES = 2**20


class LinearWeight(Protocol):
    """The weight of a linear layer, with its bias if it has one."""

    def __call__(self, x: Tensor) -> Tensor:
        """The layer's outputs, [tokens, outputs], from [tokens, inputs]."""
        ...

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """Returns the outputs without the bias, added to `residual`."""
        ...


class PlainWeight:
    """A weight [outputs, inputs] in row- or column-major order."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight, self._transposed, self._bias = weight, weight.t(), bias

    def __call__(self, x: Tensor) -> Tensor:
        """Returns the layer's outputs."""
        return functional.linear(x, self._weight, self._bias)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """Returns the outputs without the bias, added to `residual`."""
        return torch.addmm(residual, x, self._transposed)


class PackedWeight:
    """A weight [outputs, inputs], float32 or bfloat16, in the blocked layout that oneDNN prefers for few rows."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), TRIAL_ROWS)
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """Returns the layer's outputs."""
        return cast(Tensor, torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], ""))

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """Returns the outputs without the bias, added to `residual`."""
        return cast(Tensor, torch.ops.mkldnn._linear_pointwise(x, residual, self._packed, None, "add"))


@torch.inference_mode()
def fastest_form(weight: Tensor, packable: bool) -> WeightForm:
    """Returns the form of a row-major weight in which this CPU multiplies few rows fastest, measured in milliseconds.

    It depends on the make of the CPU and on the data type: in float32 column-major was a tenth faster than row-major on
    one CPU, row-major a fifth faster on another; packed took 0.33 to 0.6 of row-major's time on an AMD with AVX-512.
    """
    forms: dict[WeightForm, LinearWeight] = {
        "row-major": PlainWeight(weight),
        "column-major": PlainWeight(weight.t().contiguous().t()),
    }
    rows = torch.randn(TRIAL_ROWS, weight.shape[1]).to(weight.dtype)
    if packable and weight.nbytes >= LEAST_PACKED_BYTES:
        try:
            packed = PackedWeight(weight)
            packed.add_to(packed(rows), rows)
            forms["packed"] = packed
        except (AttributeError, RuntimeError):  # this build of torch or this CPU lacks it
            pass
    took_s: dict[WeightForm, list[float]] = {form: [] for form in forms}
    for _ in range(TRIALS):
        for form, multiply in forms.items():
            started = perf_counter()
            for _ in range(TRIAL_PRODUCTS):
                multiply(rows)
            took_s[form].append(perf_counter() - started)
    fastest = min(took_s, key=lambda form: median(took_s[form]))
    return fastest if median(took_s[fastest]) < CLEARLY_FASTER * median(took_s["row-major"]) else "row-major"


def store_column_major(linears: Iterable[torch.nn.Linear]) -> None:
    """Store the weights of these layers in column-major order; shapes and values stay as they are."""
    for linear in linears:
        linear.weight.data = linear.weight.data.t().contiguous().t()
