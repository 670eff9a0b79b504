"""Reads the headers of weight files, counts parameters, chooses their type on a CPU. Imports no torch."""

import json
from math import prod
from pathlib import Path
from typing import Any, Literal

from inference.model_directory.model_files import LFS_POINTER, read_json

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
LENGTH_BYTES = 8  # the file begins with the length of its header, little-endian


class UnreadableWeights(ValueError):
    """A safetensors file is cut off or damaged."""

    def __init__(self, file: Path, why: str) -> None:
        self.file = file
        super().__init__(f"{file} is {why}")


def weight_files(directory: Path) -> list[Path]:
    """Returns the files that transformers reads in a directory: one, or those of the index; raises UnreadableModel."""
    if not directory.is_dir() or (directory / WEIGHTS).is_file():
        return [directory / WEIGHTS] if directory.is_dir() else []
    shards = read_json(str(directory), INDEX).get("weight_map")
    return [directory / name for name in sorted(set(map(str, shards.values())))] if isinstance(shards, dict) else []


def read_header(file: Path) -> dict[str, Any]:
    """Returns each tensor's type, shape and place by name; raises UnreadableWeights for a file that is cut off."""
    try:
        size = file.stat().st_size
        stored = _stored_header(file, size)
    except OSError as error:
        raise UnreadableWeights(file, f"not readable: {error.strerror}") from error
    try:
        header: dict[str, Any] = json.loads(stored)
        tensors = {name: tensor for name, tensor in header.items() if name != "__metadata__"}
        whole = LENGTH_BYTES + len(stored) + max((tensor["data_offsets"][1] for tensor in tensors.values()), default=0)
        _count(tensors)
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        raise UnreadableWeights(file, "no safetensors file") from error
    if whole > size:
        raise UnreadableWeights(file, f"cut off: it has {size} of its {whole} bytes")
    return tensors


def _stored_header(file: Path, size: int) -> bytes:
    with file.open("rb") as opened:
        if opened.read(len(LFS_POINTER)) == LFS_POINTER.encode():
            raise UnreadableWeights(file, "a pointer of Git LFS: run `git lfs pull` in its directory")
        opened.seek(0)
        length = int.from_bytes(opened.read(LENGTH_BYTES), "little")
        if LENGTH_BYTES + length > size:
            raise UnreadableWeights(file, f"cut off within its header, after {size} bytes")
        return opened.read(length)


def _count(tensors: dict[str, Any]) -> int:
    return sum(prod(tensor["shape"]) for tensor in tensors.values())


CpuDtype = Literal["float32", "bfloat16"]

# The decoding step of a smaller model is bound by its number of operations, to which bfloat16 adds conversions (the
# bundled model has 0.7 million parameters). The step of a larger model is bound by reading the weights, which take half
# the bytes in bfloat16. Any value from 5 to 100 million would do.
LARGE_MODEL_PARAMETERS = 50_000_000
NATIVE_FLAGS = ("amx_bf16", "avx512_bf16", "bf16")  # Intel's AMX, AVX-512 of Intel and AMD, Arm; the fastest first
CPU_INFO = Path("/proc/cpuinfo")


def native_bfloat16(cpu_info: Path = CPU_INFO) -> str | None:
    """Returns Linux's name of the CPU flag for native bfloat16 products, or None if the CPU or the system lacks it."""
    try:
        lines = cpu_info.read_text().splitlines()
    except OSError:
        return None
    flags = next((line.split(":", 1)[1].split() for line in lines if line.startswith(("flags", "Features"))), [])
    return next((flag for flag in NATIVE_FLAGS if flag in flags), None)


def cpu_dtype(parameters: int, cpu_info: Path = CPU_INFO) -> tuple[CpuDtype, str]:
    """Returns the data type for a model with this number of parameters, and the reason as a sentence."""
    feature = native_bfloat16(cpu_info)
    if feature is None:
        return "float32", "this CPU has no native bfloat16"
    if parameters < LARGE_MODEL_PARAMETERS:
        return "float32", f"a model of {parameters / 1e6:.1f} million parameters gains nothing from bfloat16"
    return (
        "bfloat16",
        f"the CPU multiplies it natively ({feature}) and the model has {parameters / 1e6:.0f} M parameters",
    )


def count_parameters(directory: Path) -> int | None:
    """Returns the number of parameters in safetensors files, None without any; raises UnreadableWeights."""
    files = [file for file in weight_files(directory) if file.is_file()]
    return sum(_count(read_header(file)) for file in files) if files else None
