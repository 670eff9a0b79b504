"""Measures the engine on this machine: the durations of prefills and decoding steps, and the number of CPU threads.

The engine itself is measured, on random tokens, so that its optimizations count. `learning` fits SCLS's Eq. (3) and (4)
to the durations.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from statistics import median
from time import perf_counter

import torch

from inference.engine_requests import DecodingRequest, RunFigures
from inference.local.engine import Engine
from inference.local.loading.model_loading import LoadedModel
from inference.model_directory.model_weights import LARGE_MODEL_PARAMETERS

Timed = tuple[int, float, float]  # batch size, tokens of each row (in a decoding step: cached tokens), seconds


@dataclass(frozen=True, slots=True)
class Grid:
    """The batches to measure, each size with each length: `steps` decoding steps, and the median of `repeats` runs."""

    sizes: tuple[int, ...]
    lengths: tuple[int, ...]
    steps: int
    repeats: int


# The grid that a worker measures when it starts: only six batches for the four coefficients of a curve, so that it
# starts soon. Not tuned.
QUICK = Grid(sizes=(1, 4, 16), lengths=(16, 128), steps=4, repeats=1)
# The grid that `magnus profile` measures, which may take minutes; not tuned.
FULL = Grid(sizes=(1, 2, 4, 8, 16, 32, 64), lengths=(16, 64, 256, 1024), steps=16, repeats=3)


@dataclass(frozen=True, slots=True)
class Measured:
    """The durations of whole prefills and of single decoding steps."""

    prefills: tuple[Timed, ...]
    decode_steps: tuple[Timed, ...]


def measure(loaded: LoadedModel, kv_budget_bytes: int, grid: Grid, within_s: float | None = None) -> Measured:
    """Measures the grid's batches that fit in memory, the smallest first; begins no batch after `within_s` seconds.

    No other engine may hold memory on the device meanwhile.
    """
    engine = Engine(replace(loaded, eos_ids=frozenset()), kv_budget_bytes)
    tokens = grid.steps + 1
    batches = [
        (size, length)
        for size, length in sorted(product(grid.sizes, grid.lengths), key=lambda batch: batch[0] * batch[1])
        if size * loaded.layout.row_bytes(length + tokens) <= kv_budget_bytes
        and length + tokens <= loaded.max_positions
    ]
    prefills: list[Timed] = []
    decode_steps: list[Timed] = []
    started = perf_counter()
    for size, length in batches:
        _run(engine, size, length, tokens=2)  # allocates the cache and warms up before the measured runs
        runs = [_run(engine, size, length, tokens) for _ in range(grid.repeats)]
        prefills.append((size, length, median(run.prefill_s for run in runs)))
        decode_steps.append((size, length + tokens / 2, median(run.decode_s for run in runs) / grid.steps))
        if within_s is not None and perf_counter() - started >= within_s:
            break
    return Measured(tuple(prefills), tuple(decode_steps))


def _run(engine: Engine, size: int, length: int, tokens: int) -> RunFigures:
    rng = random.Random(0)
    vocabulary = engine.loaded.model.config.get_text_config().vocab_size
    prompts = [tuple(rng.randrange(vocabulary) for _ in range(length)) for _ in range(size)]
    _, figures = engine.run([DecodingRequest(str(row), prompt, tokens) for row, prompt in enumerate(prompts)])
    return figures


# A step may take this many times as long with fewer threads, which leave cores to the service's other processes. With
# one thread instead of two, the bundled model's step takes 1.1 times as long: any value from 1.15 to 1.4 would do.
# Where the model takes nearly all of the CPU time, a thread is worth its core as soon as it shortens a step.
TOLERATED_SLOWDOWN, OF_A_LARGE_MODEL = 1.25, 1.05
STEPS = Grid(sizes=(8,), lengths=(16,), steps=8, repeats=1)
# Each number of threads is measured in each turn, so that other processes slow all of them down alike. The median of
# the turns counts: the shortest step would be one that a process on the second core happened not to disturb.
TURNS = 3
TURNS_WITHIN_S = 6.0  # no turn begins later, so that a worker of a slow model starts soon; not tuned


def worthwhile_threads(loaded: LoadedModel, kv_budget_bytes: int, most: int) -> int:
    """Returns the fewest threads, at most `most`, whose step takes at most a tolerated multiple of the shortest one.

    Changes torch's number of threads. No other engine may hold memory on the device meanwhile.
    """
    if most == 1:
        return 1
    step_s: dict[int, list[float]] = {threads: [] for threads in halved(most)}
    began = perf_counter()
    for turn in range(TURNS):
        if turn and perf_counter() - began > TURNS_WITHIN_S:
            break
        for threads, measured_s in step_s.items():
            torch.set_num_threads(threads)
            steps = measure(loaded, kv_budget_bytes, STEPS).decode_steps
            if not steps:  # the budget holds so few rows that more threads would be idle
                return 1
            measured_s.append(steps[0][2])
    typical_s = {threads: median(measured_s) for threads, measured_s in step_s.items()}
    tolerable_s = tolerated_slowdown(loaded) * min(typical_s.values())
    return min(threads for threads, seconds in typical_s.items() if seconds <= tolerable_s)


def tolerated_slowdown(loaded: LoadedModel) -> float:
    """Returns how many times as long a step of this model may take if that saves a thread."""
    return OF_A_LARGE_MODEL if loaded.parameters >= LARGE_MODEL_PARAMETERS else TOLERATED_SLOWDOWN


def halved(most: int) -> Iterator[int]:
    """Yields `most`, half of it, and so on down to 1."""
    while most >= 1:
        yield most
        most //= 2
