"""Memory that is taken whole and costs nothing before it is used."""

import mmap

import torch
from torch import Tensor

HUGE_PAGES = getattr(mmap, "MADV_HUGEPAGE", None)  # Linux alone has them


def zeros(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor of zeros; on a CPU the system provides each page of it when it is first written.

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
