"""Computes fingerprints of a server's models: of their directories, if these are here, or of what it announces."""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

from inference.engine_errors import TokenizerAway
from inference.model_directory.model_fingerprint import directory_fingerprint
from inference.prompts.request_tokens import RequestTokens
from inference.remote.server_capabilities import Announced, ProbedServer
from inference.remote.server_errors import ServerUnusable

# A text that different tokenizers encode differently: words, numbers, code, and several scripts.
PROBE = "The tokenizers of 2 models, 31,415 tokens: def f(x): return x\n\tÜber die Brücke. 東京の天気は? Привет 😀"
SIZES = ("n_vocab", "n_embd", "n_params", "size")  # entries of llama.cpp's `meta` that no setting of it changes


def announced(listed: Iterable[Mapping[str, Any]]) -> dict[str, Announced]:
    """Returns what a server's list says of each model beside its name: its root, and its sizes."""
    of_models: dict[str, Announced] = {}
    for model in listed:
        meta = model.get("meta")
        said = {"root": model.get("root")} | {size: meta.get(size) for size in SIZES if isinstance(meta, Mapping)}
        of_models[str(model["id"])] = {name: value for name, value in said.items() if value is not None}
    return of_models


def server_fingerprints(name: str, server: ProbedServer, tokens: RequestTokens) -> dict[str, str]:
    """Returns the fingerprints of a server's model, as `name`, and of its adapters; raises ServerUnusable."""
    try:
        ids = tokens.encode_raw(PROBE)
    except TokenizerAway as error:
        raise ServerUnusable(server.url, f"{error}; or give MAGNUS_MODEL its model's directory or hub id") from error

    def fingerprint(model: str, listed: str, base: str = "") -> str:
        said = server.announced.get(listed, {})
        root = said.get("root")
        with suppress(OSError):  # this process may not read it
            if isinstance(root, str) and Path(root).is_dir():
                return directory_fingerprint(Path(root), base)
        return blake2b(json.dumps([said or model, base, ids]).encode(), digest_size=16).hexdigest()

    own = fingerprint(server.client_name, server.model)
    return {name: own} | {adapter: fingerprint(adapter, adapter, own) for adapter in server.adapters}
