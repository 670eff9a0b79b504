"""Computes fingerprints of models and adapters: generated tokens are resumed only under the fingerprint they came from.

A fingerprint covers the names and sizes of a directory's files, all bytes of configuration, tokenizer and template,
and evenly spread blocks of the weights, which of up to 16 MiB are all bytes. Imports no torch.
"""

from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path

from huggingface_hub import try_to_load_from_cache

from inference.model_directory.model_files import HUB_ID

WEIGHTS = (".bin", ".safetensors")
READ_WHOLE = (".jinja", ".json", ".model", ".txt")
# Of a model of 16 GB, one block of each 31 MB is read, several of each layer, so that a model that was trained further
# differs in them. More blocks take longer: 512 take about 20 ms from the system's cache, where loading left the files.
BLOCKS, BLOCK_BYTES = 512, 2**15


def fingerprints(name: str, model: str, adapters: Mapping[str, Path]) -> dict[str, str]:
    """Returns the fingerprints of a model and its adapters by name; empty if the model is not found here."""
    directory = model_directory(model)
    if directory is None:
        return {}
    own = directory_fingerprint(directory)
    return {name: own} | {adapter: directory_fingerprint(place, own) for adapter, place in adapters.items()}


def model_directory(model: str) -> Path | None:
    """Returns the directory of a model, or the hub's cache of it; None if neither is here."""
    if Path(model).is_dir():
        return Path(model)
    cached = try_to_load_from_cache(model, "config.json") if HUB_ID.fullmatch(model) else None
    return Path(cached).parent if isinstance(cached, str) else None


def directory_fingerprint(directory: Path, base: str = "") -> str:
    """Returns a directory's fingerprint; that of an adapter depends on the fingerprint of its `base`."""
    files = [file for file in sorted(directory.iterdir()) if file.suffix in (*WEIGHTS, *READ_WHOLE) and file.is_file()]
    sizes = {file: file.stat().st_size for file in files}
    apart = max(BLOCK_BYTES, sum(size for file, size in sizes.items() if file.suffix in WEIGHTS) // BLOCKS)
    digest = blake2b(base.encode(), digest_size=16)
    for file, size in sizes.items():
        digest.update(f"{file.name}/{size}/".encode())
        with file.open("rb") as opened:
            for start in range(0, size, apart if file.suffix in WEIGHTS else BLOCK_BYTES):
                opened.seek(start)
                digest.update(opened.read(BLOCK_BYTES))
    return digest.hexdigest()
