"""The memory of the KV cache: the bytes of a token, the bytes that the cache may hold, and how it takes them."""

import mmap
import os
from dataclasses import dataclass

import torch
from pydantic import ByteSize, TypeAdapter, ValidationError
from torch import Tensor

from inference.engine_errors import BudgetTooLarge, BudgetTooSmall, UnreadableBudget

# Columns by which a rectangle grows. Each growth moves its rows: smaller steps cost more copies, larger ones leave more
# memory unused. Not tuned.
COLUMN_STEP = 64
# Ten rows of Magnus Eq. (1) for the bundled model (3,072 bytes a token, 1,024 + 1,024 tokens a row). More allows larger
# batches and takes more of the machine's memory; not tuned.
CPU_BUDGET_BYTES = 64 * 2**20
GPU_SHARE = 0.7  # of the memory beside the weights; the rest is for activations (Magnus IV-A)
HUGE_PAGES = getattr(mmap, "MADV_HUGEPAGE", None)  # exists only on Linux


@dataclass(frozen=True, slots=True)
class KvLayout:
    """The shape of what is cached for one token: a key and a value for each head of each layer."""

    layers: int
    heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def token_bytes(self) -> int:
        """Δ of Magnus Eq. (1): bytes that one token takes."""
        return self.layers * self.heads * (self.key_dim + self.value_dim) * self.dtype.itemsize


def zeros(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns a tensor of zeros; on a CPU the system provides each page when it is first written.

    Those pages stay. Memory that grows by new tensors pays for new pages at each growth, which took seconds of a CPU
    worker's time where copying took a tenth of one (docs/results/engines.md).
    """
    nbytes = rows * columns * dtype.itemsize
    if device.type != "cpu" or not nbytes:
        return torch.zeros(rows, columns, dtype=dtype, device=device)
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if HUGE_PAGES is not None:
        memory.madvise(HUGE_PAGES)
    return torch.frombuffer(memory, dtype=dtype).view(rows, columns)


def kv_budget_bytes(configured: str, device: torch.device) -> int:
    """Returns the bytes Θ of a size such as 20GiB, or of "auto" on a device whose model is loaded (Magnus Eq. 1).

    Raises UnreadableBudget, or BudgetTooLarge for more than the device's memory.
    """
    if configured == "auto":
        return int(GPU_SHARE * _free_bytes(device)) if device.type == "cuda" else CPU_BUDGET_BYTES
    try:
        budget_bytes = int(TypeAdapter(ByteSize).validate_python(configured))
    except ValidationError as error:
        raise UnreadableBudget(configured) from error
    memory_bytes = _free_bytes(device) if device.type == "cuda" else host_memory_bytes()
    if budget_bytes > memory_bytes:
        raise BudgetTooLarge(budget_bytes, memory_bytes, str(device))
    return budget_bytes


def host_memory_bytes() -> int:
    """Returns the bytes of memory that this machine has, in use or not."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _free_bytes(device: torch.device) -> int:
    torch.cuda.empty_cache()  # memory that loading left in torch's cache is free as well
    return torch.cuda.mem_get_info(device)[0]


def require_a_row(budget_bytes: int, token_bytes: int) -> None:
    """Raises BudgetTooSmall if the budget holds no row of COLUMN_STEP tokens, the least that is allocated."""
    if budget_bytes < COLUMN_STEP * token_bytes:
        raise BudgetTooSmall(budget_bytes, COLUMN_STEP, token_bytes)
