"""Θ: how many bytes of KV cache an engine may hold (Magnus Eq. 1), as configured or by the device's free memory."""

import torch
from pydantic import ByteSize, TypeAdapter, ValidationError

from inference.engine_errors import BudgetTooSmall, UnreadableBudget
from inference.local.kv_cache import COLUMN_STEP

# Ten rows of Magnus Eq. (1) for the bundled model (3,072 bytes a token, 1,024 + 1,024 tokens a row). More allows larger
# batches and takes more of the machine's memory; not tuned.
CPU_BUDGET_BYTES = 64 * 2**20
GPU_SHARE = 0.7  # of the memory that the weights leave; the rest is for activations (Magnus IV-A)


def kv_budget_bytes(configured: str, device: torch.device) -> int:
    """Bytes of a size such as 20GiB, or of "auto" on this device, whose model is loaded; raises UnreadableBudget."""
    if configured != "auto":
        try:
            return int(TypeAdapter(ByteSize).validate_python(configured))
        except ValidationError as error:
            raise UnreadableBudget(configured) from error
    if device.type != "cuda":
        return CPU_BUDGET_BYTES
    torch.cuda.empty_cache()  # memory that loading left in torch's cache is free as well
    free_bytes, _ = torch.cuda.mem_get_info(device)
    return int(GPU_SHARE * free_bytes)


def require_a_row(budget_bytes: int, token_bytes: int) -> None:
    """Raise BudgetTooSmall if a cache of that budget holds not even one row of the least columns that are allocated."""
    if budget_bytes < COLUMN_STEP * token_bytes:
        raise BudgetTooSmall(budget_bytes, COLUMN_STEP, token_bytes)
