"""A device that computes on the CPU but keeps its tensors apart from those of the host, as a GPU does.

While it is entered, tensors made for the device `meta` belong to it. An operation on tensors of both the host and the
device fails, as does pinning a tensor of the device; every copy between the two and every wait of the host for the
device is counted.
"""

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from inference import accelerator
from inference.local.forward import row_attention
from inference.local.forward.fused_model import FusedModel
from inference.local.forward.linear_weights import PlainWeight
from inference.local.loading.model_loading import LoadedModel

DEVICE, HOST = torch.device("meta"), torch.device("cpu")
aten = torch.ops.aten
# What needs a number on the host, so that the host waits until the device has computed it.
WAITS = {aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten.is_nonzero, aten.equal}
COPIES = {aten._to_copy, aten.to, aten.copy_, aten.copy}


class OnDevice(torch.Tensor):
    """A tensor of the device; `held` has its numbers."""

    held: torch.Tensor
    # what is on the host stays a plain tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> "OnDevice":
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=DEVICE,
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise RuntimeError(f"{func} outside of the device")


class PretendedDevice(TorchDispatchMode):
    """Computes on the CPU what the device would; `moved` counts copies and waits by name."""

    def __init__(self) -> None:
        super().__init__()
        self.moved: Counter[str] = Counter()
        self._passes = 0  # that the device was given
        self._copying: list[tuple[torch.Tensor, torch.Tensor]] = []  # to the host, not waited for yet
        self._patches = [patch.object(accelerator, *each) for each in (("_pinned", _pinned), ("_mark", self._mark))]
        self._patches.append(patch.object(row_attention, "lower_right", _lower_right))

    def __enter__(self) -> Any:
        for each in self._patches:
            each.start()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for each in self._patches:
            each.stop()

    def _mark(self, device: torch.device) -> Callable[[], None]:
        """As an event of a device: what was copied to the host before is there once the host has waited for it."""
        copied, passes = [*self._copying], self._passes

        def wait() -> None:
            self.moved["read later" if self._passes > passes else "read at once"] += 1
            for target, source in copied:
                target.copy_(source)

        self._copying.clear()
        return wait

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = dict(kwargs or {})
        tensors = [leaf for leaf in tree_leaves((args, options)) if isinstance(leaf, torch.Tensor)]
        of_device = [tensor for tensor in tensors if isinstance(tensor, OnDevice)]
        of_host = [tensor for tensor in tensors if not isinstance(tensor, OnDevice) and tensor.dim()]
        name, wanted = func.overloadpacket, [leaf for leaf in tree_leaves((args, options)) if _is_device(leaf)]
        goes_to_device = wanted[0] == DEVICE if wanted else bool(of_device)
        self._passes += name is aten.embedding
        if name is aten.copy_ and of_device and not isinstance(args[0], OnDevice) and (args[2:] or options):
            self._copying.append((args[0], args[1].held.clone()))
            return args[0]
        if name in COPIES:
            self._note_copy(name, goes_to_device, of_device, of_host, options.get("non_blocking"))
        elif of_device and of_host:
            raise RuntimeError(f"{func} takes tensors of the host and of the device")
        elif of_device and name in WAITS:
            self.moved["wait"] += 1
        found = func(*tree_map(_held, args), **tree_map(_held, options))
        if not goes_to_device or name is aten._local_scalar_dense:
            return found
        # an operation in place returns the tensor that it was given
        same = {id(tensor.held): tensor for tensor in of_device}
        return tree_map(lambda one: same[id(one)] if id(one) in same else _wrapped(one), found)

    def _note_copy(self, name: Any, goes_to_device: bool, of_device: Any, of_host: Any, non_blocking: Any) -> None:
        if name is aten.copy_ and of_device and of_host:
            self.moved["to device, waiting" if not non_blocking else "to device"] += 1
        elif goes_to_device and not of_device:
            self.moved["to device" if non_blocking else "to device, waiting"] += 1
        elif of_device and not goes_to_device:
            self.moved["to host"] += 1


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    """As torch does with a GPU: only memory of the host can be pinned."""
    if isinstance(tensor, OnDevice):
        raise RuntimeError("only tensors of the host can be pinned")
    return tensor


def _lower_right(queries: int, keys: int) -> torch.Tensor:
    """The mask in place of torch's symbol of it, which no wrapped tensor can meet."""
    return torch.ones(queries, keys, dtype=torch.bool, device=DEVICE).tril(keys - queries)


def _is_device(leaf: Any) -> bool:
    return isinstance(leaf, torch.device)


def _held(leaf: Any) -> Any:
    """What the CPU computes with in place of a tensor of the device, or of the device."""
    return leaf.held if isinstance(leaf, OnDevice) else HOST if _is_device(leaf) else leaf


def _wrapped(one: Any) -> Any:
    return OnDevice(one) if isinstance(one, torch.Tensor) else one


def moved_to_device(loaded: LoadedModel) -> LoadedModel:
    """A model whose forward passes are computed on the device."""
    decoder = FusedModel(copy.deepcopy(loaded.model))
    for name, value in vars(decoder).items():
        if isinstance(value, torch.Tensor | PlainWeight):
            setattr(decoder, name, _moved(value))
    decoder._layers = [
        replace(layer, **{field.name: _moved(getattr(layer, field.name)) for field in fields(layer)})
        for layer in decoder._layers
    ]
    rotation = decoder._rotation
    rotation._buffers.update({name: _moved(value) for name, value in rotation._buffers.items()})
    return replace(loaded, decoder=decoder, device=DEVICE, layout=replace(loaded.layout, device=DEVICE))


def _moved(value: Any) -> Any:
    if isinstance(value, PlainWeight):
        return PlainWeight(_moved(value._weight), _moved(value._bias))
    return OnDevice(value.detach()) if isinstance(value, torch.Tensor) else value
