"""Compares a decoding step with the time to read weights and cache at the device's full bandwidth."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median
from time import perf_counter

import torch

from benchmarks.engines.compared_engines import kv_budget_bytes
from inference.engine_requests import DecodingRequest
from inference.local.engine import Engine
from inference.local.joiners import PIECE_TOKENS
from inference.local.loading.model_loading import LoadedModel

# Tokens of each prompt, timed decoding steps, and steps before the timed ones: enough for a stable median, not tuned.
FLOOR_TOKENS, FLOOR_STEPS, FLOOR_WARM_UP = 128, 32, 4


def synchronized(clock: Callable[[], float]) -> Callable[[], float]:
    """Make a clock that is read after the device has finished its queued work."""

    def now() -> float:
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
        return clock()

    return now


def seconds_of(compute: Callable[[], object], repeats: int, clock: Callable[[], float] = perf_counter) -> list[float]:
    """Compute so many times; returns the seconds of each, to the end of the device's work."""
    now, seconds = synchronized(clock), []
    for _ in range(repeats):
        began = now()
        compute()
        seconds.append(now() - began)
    return seconds


def bandwidth(device: torch.device, clock: Callable[[], float]) -> float:
    """Measure the bytes a second that the device reads: the best of six sums over a tensor larger than its caches."""
    numbers = torch.ones(2**26 if device.type == "cpu" else 2**29, device=device)
    return numbers.nbytes / min(seconds_of(numbers.sum, 6, clock))


def floor_s(loaded: LoadedModel, batch: int, bytes_per_s: float, tokens: int = FLOOR_TOKENS) -> float:
    """Compute the seconds in which a step's weights, and its rows' cache of `tokens`, are read at full bandwidth."""
    looked_up = loaded.model.get_input_embeddings().weight
    tied = looked_up is loaded.model.get_output_embeddings().weight
    weights = loaded.weight_bytes - (0 if tied else looked_up.nbytes)
    cached = batch * (tokens + FLOOR_WARM_UP + FLOOR_STEPS // 2) * loaded.delta_bytes
    return (weights + cached) / bytes_per_s


@torch.inference_mode()
def step_s(
    loaded: LoadedModel,
    batch: int,
    clock: Callable[[], float],
    tokens: int = FLOOR_TOKENS,
    budget_bytes: int | None = None,
    adapters: Sequence[str] = ("",),
) -> float:
    """Return the median seconds of FLOOR_STEPS decoding steps with `batch` rows of `tokens`, which share the adapters.

    The engine gets `budget_bytes` of memory; if None, more than its rows can take. Rows that would join in pieces are a
    static batch. The clock is read as soon as a step returns, because a device computes the next one meanwhile.
    """
    longest = tokens + FLOOR_WARM_UP + FLOOR_STEPS + 2
    engine = Engine(loaded, budget_bytes or kv_budget_bytes(loaded, batch, longest))
    rows = [
        DecodingRequest(str(row), (1 + row,) * tokens, longest - tokens, adapter=adapters[row % len(adapters)])
        for row in range(batch)
    ]
    ended: list[float] = []
    if tokens > PIECE_TOKENS:
        engine.run(rows, FLOOR_WARM_UP + FLOOR_STEPS + 1, lambda _: ended.append(clock()))
    else:
        engine.insert(rows)
        for _ in range(FLOOR_WARM_UP + FLOOR_STEPS + 1):
            engine.step()
            ended.append(clock())
    return median(after - before for before, after in pairwise(ended[FLOOR_WARM_UP:]))
