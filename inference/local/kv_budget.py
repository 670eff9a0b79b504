"""Θ: how many bytes of KV cache an engine may hold (Magnus Eq. 1), as configured or by what its device has free."""

import torch
from pydantic import ByteSize, TypeAdapter, ValidationError

from inference.engine_errors import UnreadableBudget

CPU_BUDGET_BYTES = 64 * 2**20
GPU_SHARE = 0.7  # of the free memory: the rest is for activations (Magnus IV-A)


def kv_budget_bytes(configured: str, device: torch.device) -> int:
    """A size such as 20GiB, or with "auto" what suits the device once its model is loaded; raises UnreadableBudget."""
    if configured != "auto":
        try:
            return int(TypeAdapter(ByteSize).validate_python(configured))
        except ValidationError as error:
            raise UnreadableBudget(configured) from error
    if device.type != "cuda":
        return CPU_BUDGET_BYTES
    torch.cuda.empty_cache()  # what loading left behind is free as well
    free_bytes, _ = torch.cuda.mem_get_info(device)
    return int(GPU_SHARE * free_bytes)
