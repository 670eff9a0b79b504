"""Chooses a device, measures its memory, copies tensors between it and the host, and records graphs on it.

Only this module and torch.accelerator know kinds of devices, such as cuda or xpu. A CPU computes in the host's memory:
its tensors are not copied, and it has neither streams nor graphs. MPS is treated like a CPU here, because it shares the
host's memory.
"""

from collections.abc import Callable, Sequence
from functools import cache
from time import perf_counter, thread_time
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_flash_attention

OF_THE_HOST = ("cpu", "mps")  # these devices have no memory of their own

Outputs = TypeVar("Outputs")


def chosen_device(device: str) -> str:
    """Returns a named device, or the one that "auto" means: the first one with memory of its own, else the CPU."""
    if device != "auto":
        return device
    found = torch.accelerator.current_accelerator(check_available=True)
    return "cpu" if found is None or found.type in OF_THE_HOST else f"{found.type}:0"


def device_problem(device: str) -> str:
    """Returns why torch cannot compute on this device here, or "" if it can."""
    try:
        torch.empty(1, device=device)
    except (AssertionError, NotImplementedError, RuntimeError) as error:
        return str(error).partition("\n")[0]
    return ""


def has_own_memory(device: torch.device) -> bool:
    """Returns whether tensors are copied to and from this device."""
    return device.type not in OF_THE_HOST


def clock_of(device: torch.device) -> Callable[[], float]:
    """Returns the clock by which a pass on this device is timed, so that other work of the machine is not counted.

    On a CPU that is the time for which this thread computed; otherwise elapsed time, as the thread waits for a device.
    """
    return thread_time if device.type == "cpu" else perf_counter


def free_bytes(device: torch.device) -> int:
    """Calls `release_unused`, then returns the free bytes of a device that has memory of its own."""
    release_unused()
    return torch.accelerator.get_memory_info(device)[0]


def release_unused() -> None:
    """Gives back the device memory that torch keeps for later tensors."""
    if _has_accelerator():
        torch.accelerator.empty_cache()


@cache
def _has_accelerator() -> bool:
    return torch.accelerator.is_available()


def to_device(numbers: Sequence[Any], device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Returns a tensor of these numbers on a device."""
    return copied_to(torch.tensor(numbers, dtype=dtype), device)


def copied_to(on_host: Tensor, device: torch.device) -> Tensor:
    """Returns a tensor of the host on a device; the host does not wait until the device has computed its work.

    A copy from ordinary memory would make the host wait, so the tensor is pinned. torch keeps it until it is copied.
    """
    if not has_own_memory(device):
        return on_host.to(device)
    return _pinned(on_host).to(device, non_blocking=True)


def _pinned(on_host: Tensor) -> Tensor:
    return on_host.pin_memory() if _has_accelerator() else on_host


def to_host(tensor: Tensor) -> list[Any]:
    """Returns the numbers of a tensor once the device has computed them."""
    found: list[Any] = tensor.cpu().tolist()
    return found


def attends_in_groups(query: Tensor, keys: Tensor, values: Tensor) -> bool:
    """Returns whether torch's attention without a mask shares a key head among query heads.

    If not, the caller must repeat the key heads. All are [rows, heads, tokens, dim]. Flash attention does, but not in
    float32 nor on old cards.
    """
    if not has_own_memory(query.device):
        return False
    return bool(can_use_flash_attention(SDPAParams(query, keys, values, None, 0.0, False, True)))


def read_later(tensor: Tensor) -> Callable[[], list[Any]]:
    """Copies a tensor to the host; returns a function that waits for what the device was given so far, and reads it."""
    if not has_own_memory(tensor.device):
        return tensor.tolist
    copy = torch.empty_like(tensor, device="cpu", pin_memory=_has_accelerator())
    copy.copy_(tensor, non_blocking=True)
    wait = _mark(tensor.device)

    def numbers() -> list[Any]:
        wait()
        found: list[Any] = copy.tolist()
        return found

    return numbers


def _mark(device: torch.device) -> Callable[[], None]:
    """Returns a function that waits for what the device was given so far."""
    event = torch.Event(device)
    event.record(torch.accelerator.current_stream(device))
    return event.synchronize


def of_rows(tensor: Tensor, rows: Sequence[int]) -> Tensor:
    """Returns a copy of these rows of a tensor; indexing by a list instead would make the host wait."""
    return tensor.index_select(0, to_device(rows, tensor.device, torch.long))


class HostCopy:
    """Copies of tensors in host memory, which the device may still be making."""

    def __init__(
        self, copies: list[Tensor], seconds: float | None, events: Sequence[Any] = (), sources: Sequence[Tensor] = ()
    ) -> None:
        """`events` mark begin and end of the copies; `sources` are held until they end, so nothing overwrites them."""
        self._copies, self._seconds, self._events, self._sources = copies, seconds, events, sources
        self.nbytes = sum(copy.nbytes for copy in copies)

    @property
    def seconds(self) -> float | None:
        """The seconds that the copies took; None while they are still being made."""
        if self._seconds is None:
            began, ended = self._events
            if ended.query():
                self._seconds, self._sources = began.elapsed_time(ended) / 1000, ()
        return self._seconds

    def tensors(self) -> list[Tensor]:
        """Returns the copies once they are made."""
        if self._events:
            self._events[1].synchronize()
            self._sources = ()
        return self._copies


def copies_beside(sources: Sequence[Tensor], stream: Any, computing: Any, event: Callable[[], Any]) -> HostCopy:
    """Lets `stream` copy `sources` to the host once the stream `computing` has done what it was given so far."""
    copies = [torch.empty_like(one, device="cpu", pin_memory=_has_accelerator()) for one in sources]
    began, ended = event(), event()
    stream.wait_stream(computing)
    with stream:
        stream.record_event(began)
        for copy, source in zip(copies, sources, strict=True):
            copy.copy_(source, non_blocking=True)
        stream.record_event(ended)
    return HostCopy(copies, None, (began, ended), sources)


class HostCopies:
    """Copies tensors of one device to the host; a device that has streams computes on meanwhile."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.Stream(device=device) if _has_streams(device) else None

    def copy(self, tensors: Sequence[Tensor]) -> HostCopy:
        """Copies tensors that nobody writes to any more."""
        if self._stream is None:
            started = perf_counter()
            copies = [one.cpu() for one in tensors]
            return HostCopy(copies, perf_counter() - started)
        computing = torch.accelerator.current_stream(self._device)
        return copies_beside(tensors, self._stream, computing, lambda: torch.Event(self._device, enable_timing=True))


def _has_streams(device: torch.device) -> bool:
    return has_own_memory(device) and _has_accelerator()


class GraphRecorder:
    """Records what functions compute on a device, so that each can be computed again by one call of the host."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.Stream(device=device)
        self._kept: Any = None  # this graph is never dropped, so that the memory that all graphs share is kept
        self._kept = self._recorded(lambda: torch.zeros(1, device=device))[1]

    def record(self, compute: Callable[[], Outputs]) -> tuple[Outputs, Callable[[], None]]:
        """Computes once; returns the outputs, and a function that computes them again into the same memory.

        The returned function reads what the inputs' memory holds at its call, so callers must keep inputs and outputs.
        """
        outputs, graph = self._recorded(compute)
        graph.replay()  # while it was recorded, nothing was computed
        return outputs, graph.replay

    def _recorded(self, compute: Callable[[], Outputs]) -> tuple[Outputs, Any]:
        computing = torch.accelerator.current_stream(self._device)
        self._stream.wait_stream(computing)
        with self._stream:
            compute()  # allocates memory and chooses kernels, which cannot be recorded
        shared = self._kept.pool() if self._kept else None
        graph = torch.accelerator.Graph(pool=shared, capture_error_mode="thread_local")
        with self._stream, graph:
            outputs = compute()
        computing.wait_stream(self._stream)
        return outputs, graph


def graph_recorder(device: torch.device) -> GraphRecorder | None:
    """Returns a recorder for this device, or None for a device without streams, such as a CPU."""
    return GraphRecorder(device) if _has_streams(device) else None
