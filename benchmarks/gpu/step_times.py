"""Decoding steps beside the time to read weights and cache, and prefills beside a matrix product of the device."""

import gc
from collections.abc import Iterator
from functools import cache, partial
from statistics import median
from time import perf_counter
from typing import Any

import torch

from benchmarks.engines.bandwidth_floor import FLOOR_STEPS, FLOOR_WARM_UP, floor_s, step_s, synchronized
from benchmarks.engines.engine_workload import load_for_serving, random_model
from benchmarks.gpu.card import copied_bytes_per_s, product_flop_per_s
from benchmarks.gpu.phase_plan import Part, Terms
from benchmarks.harness import Json
from inference.accelerator import free_bytes, has_own_memory, release_unused
from inference.engine_requests import DecodingRequest
from inference.local.engine import Engine
from inference.local.kv.kv_budget import COLUMN_STEP, host_memory_bytes
from inference.local.loading.model_loading import LoadedModel

DTYPE = "bfloat16"
POSITIONS = 8192 + COLUMN_STEP  # the longest prompt, with its answer
SIZES, SMALL_SIZES = ("7b", "qwen3-0.6b"), ("tiny",)
ROWS, SMALL_ROWS = (1, 8, 32, 128, 256), (1, 4)
CONTEXTS, SMALL_CONTEXTS = (256, 4096), (64,)
PROMPTS, SMALL_PROMPTS = (512, 2048, 8192), (128,)
MOST_MEMORY = 0.9  # a cache that takes more of the free memory is left out
PREFILLS = 3


def parts(terms: Terms) -> Iterator[Part]:
    """Measure short contexts first, then prefills, then the long contexts, which take longer to fill."""
    sizes = SMALL_SIZES if terms.small else SIZES
    short, *long = SMALL_CONTEXTS if terms.small else CONTEXTS
    bytes_per_s = cache(lambda: copied_bytes_per_s(terms.device))
    flop_per_s = cache(lambda: product_flop_per_s(terms.device, DTYPE))
    loaded = cache(partial(random_loaded, device=terms.device))
    yield "limits", lambda: {"bytes_per_s": bytes_per_s(), "flop_per_s": flop_per_s()}

    def steps(size: str, context: int) -> Iterator[Part]:
        for rows in SMALL_ROWS if terms.small else ROWS:
            name = f"{size}: {rows} rows of {context} tokens"
            yield name, lambda rows=rows: step(loaded(size), rows, context, bytes_per_s())  # type: ignore[misc]

    for size in sizes:
        yield f"{size}: model", lambda size=size: {"slowed_by": loaded(size).slowed_by}  # type: ignore[misc]
        yield from steps(size, short)
        for tokens in SMALL_PROMPTS if terms.small else PROMPTS:
            name = f"{size}: prefill of {tokens} tokens"
            yield name, lambda size=size, tokens=tokens: prefill(loaded(size), tokens, flop_per_s())  # type: ignore[misc]
    for context in long:
        for size in sizes:
            yield from steps(size, context)


def random_loaded(size: str, device: str) -> LoadedModel:
    """Load a model of this shape with random weights as the engine does; its answers have no end."""
    made = random_model(size, device, getattr(torch, DTYPE), POSITIONS)
    release_unused()  # torch keeps the float32 weights' memory
    return load_for_serving(made, size)


def step(loaded: LoadedModel, rows: int, context: int, bytes_per_s: float) -> Json:
    """Measure a step; `times` is how many times as long it takes as reading weights and cache at the full bandwidth."""
    longest = context + FLOOR_WARM_UP + FLOOR_STEPS + 2 * COLUMN_STEP
    budget_bytes = rows * longest * loaded.delta_bytes
    if budget_bytes > MOST_MEMORY * free_memory(loaded.device):
        return {"rows": rows, "context": context, "left_out": f"a cache of {budget_bytes / 2**30:.0f} GiB"}
    took_s = step_s(loaded, rows, perf_counter, context, budget_bytes)
    least_s = floor_s(loaded, rows, bytes_per_s, context)
    line = {"rows": rows, "context": context, "step_ms": 1000 * took_s, "reading_ms": 1000 * least_s}
    return line | {"times": took_s / least_s, "tokens_per_s": rows / took_s}


def free_memory(device: torch.device) -> int:
    """Return the free bytes of a device, without what earlier engines had; of the host, all."""
    gc.collect()
    return free_bytes(device) if has_own_memory(device) else host_memory_bytes()


@torch.inference_mode()
def prefill(loaded: LoadedModel, tokens: int, flop_per_s: float) -> Json:
    """Measure the time to the first token of one prompt; `share` is that of the measured matrix product."""
    now, took = synchronized(perf_counter), []
    for _ in range(PREFILLS + 1):  # the first one warms up
        engine = Engine(loaded, (tokens + 2 * COLUMN_STEP) * loaded.delta_bytes)
        began = now()
        engine.insert([DecodingRequest("0", tuple(1 + n % 499 for n in range(tokens)), 1)])
        while engine.rows:
            engine.step()
        took.append(now() - began)
    operations, took_s = prefill_operations(loaded.model, tokens), median(took[1:])
    return {"tokens": tokens, "ms": 1000 * took_s, "share": operations / took_s / flop_per_s}


def prefill_operations(model: Any, tokens: int) -> float:
    """Count the multiplications and additions of a prompt: linear layers, causal attention, one token's output."""
    config, output = model.config, model.get_output_embeddings()
    linears = [module for module in model.modules() if isinstance(module, torch.nn.Linear) and module is not output]
    heads = config.num_attention_heads * config.head_dim
    attention: float = config.num_hidden_layers * 2 * heads * tokens**2  # two products, of which causality needs half
    return 2.0 * tokens * sum(one.in_features * one.out_features for one in linears) + attention
