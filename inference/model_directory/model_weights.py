"""Finds weight files, counts parameters, chooses their type on a CPU. Imports no torch."""

from pathlib import Path
from typing import Literal

from inference.model_directory.model_files import count_values, read_header, read_json

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


def weight_files(directory: Path) -> list[Path]:
    """Returns the files that transformers reads in a directory: one, or those of an index; raises UnreadableModel.

    A config.json may name the one or the index in `transformers_weights`.
    """
    if not directory.is_dir():
        return []
    first = read_json(str(directory), "config.json").get("transformers_weights")
    if not isinstance(first, str):
        first = WEIGHTS if (directory / WEIGHTS).is_file() else INDEX
    if not first.endswith(".index.json"):
        return [directory / first]
    shards = read_json(str(directory), first).get("weight_map")
    return [directory / name for name in sorted(set(map(str, shards.values())))] if isinstance(shards, dict) else []


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
    return sum(count_values(read_header(file)) for file in files) if files else None
