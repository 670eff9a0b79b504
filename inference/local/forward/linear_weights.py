"""The weights of linear layers in the layout that this CPU multiplies fastest, measured at loading: plain or packed.

oneDNN rearranges a plain matrix at each product, and reads a packed matrix as it is.
"""

from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from time import perf_counter
from typing import Literal, Protocol, cast

import torch
from torch import Tensor
from torch.nn import functional

WeightForm = Literal["row-major", "column-major", "packed"]

TRIAL_ROWS = 16  # as in a typical decoding step; with 8 to 64 rows the ranking of the forms was the same on each CPU
TRIAL_PRODUCTS = 5  # one timing has this many products, to last much longer than the clock's resolution; not tuned
TRIALS = 15  # each form is timed this often, in turns; the median resists the load of other processes; not tuned
CLEARLY_FASTER = 0.97  # a smaller gain may be noise, and every start should choose the same form; not tuned
# A smaller weight stays in a core's cache and gains little: 44 µs plain, 40 µs packed (192 KiB, 16 rows). Any value
# from 0.5 to 2 MiB works.
LEAST_PACKED_BYTES = 2**20


class LinearWeight(Protocol):
    """The weight of a linear layer, with its bias if it has one."""

    def __call__(self, x: Tensor) -> Tensor:
        """Returns the layer's outputs, [tokens, outputs], for inputs [tokens, inputs]."""

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """Returns `residual` plus the layer's outputs without the bias."""


class PlainWeight:
    """A weight [outputs, inputs] in row- or column-major order."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight, self._transposed, self._bias = weight, weight.t(), bias

    def __call__(self, x: Tensor) -> Tensor:
        """Multiplies by the weight and adds the bias."""
        return functional.linear(x, self._weight, self._bias)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """Multiplies by the weight and adds the residual."""
        return torch.addmm(residual, x, self._transposed)


class PackedWeight:
    """A weight [outputs, inputs], float32 or bfloat16, in the blocked layout that oneDNN prefers for few rows."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), TRIAL_ROWS)
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """Multiplies by the weight and adds the bias."""
        return cast(Tensor, torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], ""))

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """Multiplies by the weight and adds the residual."""
        return cast(Tensor, torch.ops.mkldnn._linear_pointwise(x, residual, self._packed, None, "add"))


@torch.inference_mode()
def fastest_form(weight: Tensor, packable: bool) -> WeightForm:
    """Returns the form in which this CPU multiplies a weight by few rows fastest, from trials of some milliseconds.

    The answer depends on the CPU and on the data type. In float32, column-major was a tenth faster than row-major on
    one CPU and a fifth slower on another; packed took 0.33 to 0.6 of row-major's time on an AMD CPU with AVX-512.
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
        except (AttributeError, RuntimeError):  # this build of torch or this CPU cannot pack
            pass

    def products(multiply: LinearWeight) -> None:
        for _ in range(TRIAL_PRODUCTS):
            multiply(rows)

    took_s = dict(zip(forms, medians_s([partial(products, each) for each in forms.values()], TRIALS), strict=True))
    fastest = min(took_s, key=took_s.__getitem__)
    return fastest if took_s[fastest] < CLEARLY_FASTER * took_s["row-major"] else "row-major"


def medians_s(calls: Sequence[Callable[[], object]], trials: int) -> list[float]:
    """Returns the median duration of each call over this many trials, in which the calls take turns."""
    timings: list[list[float]] = [[] for _ in calls]
    for _ in range(trials):
        for call, seconds in zip(calls, timings, strict=True):
            started = perf_counter()
            call()
            seconds.append(perf_counter() - started)
    return [*map(median, timings)]
