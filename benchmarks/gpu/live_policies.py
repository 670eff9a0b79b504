"""The policies, live: the enlarged 7 B model with its own answers under the papers' terms, one policy a phase.

Memory for seven rows of Eq. (1). The model was trained on texts of up to 66 words, so that both limits are an eighth of
the papers' 1,024 tokens and answers have up to 121 tokens.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.gpu.environment import environment_with_magnus
from benchmarks.gpu.phase_plan import ROOT, Part, Terms

ROWS, MOST_TOKENS = 7, 128  # rows of Eq. (1); the most tokens of a prompt, and of an answer
REQUESTS, WARM_REQUESTS, SMALL_REQUESTS = 300, 40, 16
# Arrivals a second: 1.5 times saturation, taken as what the engine alone serves in this memory (phase `right-7b`).
OVERLOAD, RECKONED_RATE, SMALL_RATE = 1.5, 60.0, 8.0
# The most seconds to teach `magnus` serving times; the first fit waits for thirty batches. Other policies need none.
ESTIMATOR_S = 30


def parts(terms: Terms) -> Iterator[Part]:
    """Serve the workload once; `all` is `fusion` with all the memory of the card."""
    directory = cache(lambda: served_directory(terms))
    yield "model", lambda: {"directory": directory().name}
    yield "served", lambda: served(terms, directory())


def served_directory(terms: Terms) -> Path:
    """Return the directory of the model; --small serves the bundled one."""
    if terms.small:
        return ROOT / "inference" / "bundled"
    from benchmarks.gpu.enlarged_models import made_model  # imports torch, which this process needs for nothing else

    return made_model("7b", terms)


def served(terms: Terms, directory: Path) -> Any:
    """Run the live benchmark in a process of its own; returns the record of its run."""
    policy, rate = "fusion" if terms.variant == "all" else terms.variant, arrival_rate(terms)
    budget = "auto" if terms.variant == "all" else f"{ROWS * 2 * MOST_TOKENS * token_bytes(directory) // 1024}KiB"
    file = terms.work / f"live-{terms.variant}.json"
    file.unlink(missing_ok=True)
    options: dict[str, Any] = {
        "--policies": policy,
        "--model": directory,
        "--workload": "long_toy",
        "--workers": 1,
        "--rates": rate,
        "--requests": SMALL_REQUESTS if terms.small else REQUESTS,
        "--warm-requests": 0 if terms.small else WARM_REQUESTS,
        "--await-estimator": 0 if terms.small else ESTIMATOR_S,
        "--kv-budget": budget,
        "--max-prompt-tokens": MOST_TOKENS,
        "--max-output-tokens": MOST_TOKENS,
        "--json": file,
    }
    python = environment_with_magnus(terms.work / "environment")
    command = [str(python), "-m", "benchmarks.live", *(str(one) for pair in options.items() for one in pair)]
    environment = os.environ | {"MAGNUS_DEVICES": "cpu" if terms.device == "cpu" else "cuda:0"}
    ended = subprocess.run(command, cwd=ROOT, env=environment, stdout=sys.stderr)
    (run,) = json.loads(file.read_text())["figures"]
    if ended.returncode:
        raise RuntimeError(run.get("error") or f"{run['completed']} of {run['requests']} requests were answered")
    return run


def token_bytes(directory: Path) -> int:
    """Return Δ of the model as a GPU loads it: the bytes of a token's keys and values."""
    config = json.loads((directory / "config.json").read_text())
    of_layer = 2 * config["num_key_value_heads"] * config["head_dim"]
    return int(of_layer * config["num_hidden_layers"] * (2 if config["dtype"] == "bfloat16" else 4))


def arrival_rate(terms: Terms) -> float:
    """Return the arrivals a second, from what the phase `right-7b` measured if it did."""
    if terms.small:
        return SMALL_RATE
    file = terms.out / "right-7b.json"
    measured = json.loads(file.read_text())["figures"]["parts"].get("saturation", {}) if file.exists() else {}
    saturation = measured.get("figures", {}).get("requests_per_s")
    return RECKONED_RATE if saturation is None else round(OVERLOAD * float(saturation), 1)
