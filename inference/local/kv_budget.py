"""Θ: how many bytes of KV cache an engine may hold (Magnus Eq. 1), as configured or by the device's free memory."""

import os

import torch
from pydantic import ByteSize, TypeAdapter, ValidationError

from inference.engine_errors import BudgetTooLarge, BudgetTooSmall, UnreadableBudget
from inference.local.kv_cache import COLUMN_STEP

# Ten rows of Magnus Eq. (1) for the bundled model (3,072 bytes a token, 1,024 + 1,024 tokens a row). More allows larger
# batches and takes more of the machine's memory; not tuned.
CPU_BUDGET_BYTES = 64 * 2**20
GPU_SHARE = 0.7  # of the memory that the weights leave; the rest is for activations (Magnus IV-A)


def kv_budget_bytes(configured: str, device: torch.device) -> int:
    """Bytes of a size such as 20GiB, or of "auto" on this device, whose model is loaded.

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
    """The memory of this machine, in use or not."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _free_bytes(device: torch.device) -> int:
    torch.cuda.empty_cache()  # memory that loading left in torch's cache is free as well
    return torch.cuda.mem_get_info(device)[0]


def require_a_row(budget_bytes: int, token_bytes: int) -> None:
    """Raise BudgetTooSmall if a cache of that budget holds not even one row of the least columns that are allocated."""
    if budget_bytes < COLUMN_STEP * token_bytes:
        raise BudgetTooSmall(budget_bytes, COLUMN_STEP, token_bytes)
