"""The field's own shapes: what vLLM and nano-vllm publish for Qwen3-0.6B, with random weights in bfloat16."""

import random
from collections.abc import Iterator
from functools import cache
from time import perf_counter

from benchmarks.engines.bandwidth_floor import synchronized
from benchmarks.engines.compared_engines import Continuous
from benchmarks.engines.engine_workload import sequences
from benchmarks.gpu.phase_plan import Part, Terms
from benchmarks.gpu.step_times import free_memory, random_loaded
from benchmarks.harness import Json
from inference.local.kv.kv_budget import COLUMN_STEP, GPU_SHARE
from inference.local.loading.model_loading import LoadedModel

MODEL, SMALL_MODEL = "qwen3-0.6b", "tiny"
MOST_ROWS = 256  # rows at once, which vLLM and nano-vllm have, too
Lengths = list[tuple[int, int]]
VLLM = "vLLM's 500 prompts"  # of 512 tokens with 128 out: vLLM publishes 94.9 requests and 12,150 tokens/s on an H100


def parts(terms: Terms) -> Iterator[Part]:
    """Serve both workloads on one engine, which has recorded its graphs before."""
    loaded = cache(lambda: random_loaded(SMALL_MODEL if terms.small else MODEL, terms.device))
    vllm, nano = lengths(terms.small)
    engine = cache(lambda: engine_for(loaded(), nano))
    every_number_of_rows = [(16, 1 + number) for number in range(len(nano))]
    for name, asked in (("warm-up", every_number_of_rows), (VLLM, vllm), ("nano-vllm's 256 sequences", nano)):
        yield name, lambda asked=asked: measured(engine(), loaded().model.config.vocab_size, asked)  # type: ignore[misc]


def lengths(small: bool) -> tuple[Lengths, Lengths]:
    """Return prompt and answer lengths of vLLM's and of nano-vllm's benchmark; small ones are a sixteenth as long."""
    rng, part = random.Random(0), 16 if small else 1
    nano = [(rng.randint(100, 1024) // part, rng.randint(100, 1024) // part) for _ in range(256 // part)]
    return [(512 // part, 128 // part)] * (500 // part), nano


def engine_for(loaded: LoadedModel, asked: Lengths) -> Continuous:
    """Return an engine with memory for MOST_ROWS of the longest of these lengths, as far as the device has it."""
    needed = MOST_ROWS * (max(map(sum, asked)) + COLUMN_STEP) * loaded.delta_bytes
    return Continuous(loaded, min(needed, int(GPU_SHARE * free_memory(loaded.device))))


def measured(engine: Continuous, vocabulary: int, asked: Lengths) -> Json:
    """Serve random prompts of these lengths, at most MOST_ROWS at once."""
    given, now = sequences(asked, vocabulary, seed=1), synchronized(perf_counter)
    began = now()
    run = engine.serve(given, MOST_ROWS)
    seconds, tokens = now() - began, sum(map(len, run.answers.values()))
    return {
        "requests": len(asked),
        "seconds": seconds,
        "requests_per_s": len(asked) / seconds,
        "answer_tokens_per_s": tokens / seconds,
        "tokens_per_s": (tokens + sum(prompt for prompt, _ in asked)) / seconds,
    }
