"""The header of a safetensors file: which tensors it has, and whether it holds them whole. Imports no torch."""

import json
from pathlib import Path
from typing import Any

LENGTH_BYTES = 8  # the file begins with the length of its header, little-endian


class UnreadableWeights(ValueError):
    """A safetensors file is cut off or damaged."""

    def __init__(self, file: Path, why: str) -> None:
        self.file = file
        super().__init__(f"{file} is {why}")


def read_header(file: Path) -> dict[str, Any]:
    """Type, shape and place of each tensor by name; raises UnreadableWeights if the file does not hold all of them."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(LENGTH_BYTES), "little")
        if LENGTH_BYTES + length > size:
            raise UnreadableWeights(file, f"cut off within its header, after {size} bytes")
        stored = opened.read(length)
    try:
        header: dict[str, Any] = json.loads(stored)
        tensors = {name: tensor for name, tensor in header.items() if name != "__metadata__"}
        whole = LENGTH_BYTES + length + max((tensor["data_offsets"][1] for tensor in tensors.values()), default=0)
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise UnreadableWeights(file, "no safetensors file") from error
    if whole > size:
        raise UnreadableWeights(file, f"cut off: it has {size} of its {whole} bytes")
    return tensors
