"""Reads a model's small files, from its directory or from the hub, and headers of weights.

Runs no code in these files, and imports no torch.
"""

import json
import re
from math import prod
from pathlib import Path
from typing import Any

from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError

from inference.engine_errors import UnreadableModel

LFS_POINTER = "version https://git-lfs.github.com/spec/"  # the first bytes of a pointer file of Git LFS
LENGTH_BYTES = 8  # a safetensors file begins with the length of its header, little-endian
HUB_ANSWERS_WITHIN_S = 5.0  # the hub's answer takes a fraction of a second; not tuned
HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


class UnreadableWeights(ValueError):
    """A safetensors file is cut off or damaged."""

    def __init__(self, file: Path, why: str) -> None:
        self.file = file
        super().__init__(f"{file} is {why}")


def read_text(model: str, file: str, needed: bool = False) -> str | None:
    """Returns a file's text, or None if the model has none; raises UnreadableModel if that cannot be told."""
    place = Path(model)
    try:
        if place.is_dir():
            path: Path | None = place / file
        elif place.exists():
            gguf = "it is a GGUF file: `magnus model convert FILE DIRECTORY` makes a directory of it to serve"
            raise UnreadableModel(model, gguf if place.suffix == ".gguf" else "it is a file; name a model's directory")
        elif not HUB_ID.fullmatch(model):
            raise UnreadableModel(model, "there is no such directory")
        else:
            path = _from_hub(model, file, needed)
        text = path.read_text(encoding="utf-8") if path is not None and path.is_file() else None
    except UnicodeDecodeError as error:
        raise UnreadableModel(model, f"its {file} is no UTF-8 text (byte {error.start})") from error
    except OSError as error:
        raise UnreadableModel(model, f"its {file} cannot be read: {error.strerror or error}") from error
    if text is not None and text.startswith(LFS_POINTER):
        raise UnreadableModel(model, f"its {file} is a pointer of Git LFS: run `git lfs pull` in it")
    return text


def read_json(model: str, file: str) -> dict[str, Any]:
    """Returns the object in a JSON file, empty if the model has no such file; raises UnreadableModel."""
    try:
        found = json.loads(read_text(model, file) or "{}")
    except (ValueError, RecursionError) as error:
        raise UnreadableModel(model, f"its {file} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise UnreadableModel(model, f"its {file} is no JSON object")
    return found


def _from_hub(model: str, file: str, needed: bool) -> Path | None:
    try:
        cached = isinstance(try_to_load_from_cache(model, file), str)
        return Path(hf_hub_download(model, file, local_files_only=not cached and not _hub_answers(model, file)))
    except LocalEntryNotFoundError as error:
        if isinstance(try_to_load_from_cache(model, "config.json"), str):
            if not needed or try_to_load_from_cache(model, file) is not None:
                return None  # a model that was fetched as a whole has no further files
            raise UnreadableModel(
                model,
                f"its {file} is not in the cache, and the hub cannot be reached: load it once with a connection, or "
                "give a directory that has all files of the model",
            ) from error
        raise UnreadableModel(
            model, "there is no such directory, and the hub cannot be reached to look for a model of this name"
        ) from error
    except EntryNotFoundError:
        return None
    except (OSError, ValueError) as error:  # no such repository, or no right to read it
        reason = str(error).strip().partition("\n")[0]
        raise UnreadableModel(model, f"there is no such directory, and the hub says: {reason}") from error


def _hub_answers(model: str, file: str) -> bool:
    """Returns whether the hub can be reached; without asking first, a download tries for 23 s."""
    try:
        get_hf_file_metadata(hf_hub_url(model, file), timeout=HUB_ANSWERS_WITHIN_S)
    except HfHubHTTPError:  # it answers that there is no such file, or no right to read it
        return True
    except Exception:  # no connection; the hub's client passes errors of its HTTP library on
        return False
    return True


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
        count_values(tensors)
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


def count_values(tensors: dict[str, Any]) -> int:
    """Returns the number of values of these tensors of a header."""
    return sum(prod(tensor["shape"]) for tensor in tensors.values())
