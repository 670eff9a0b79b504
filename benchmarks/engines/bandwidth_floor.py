"""Compares a decoding step with the time to read weights and cache at the device's full bandwidth."""

from collections.abc import Callable
from statistics import median

import torch

from benchmarks.engines.compared_engines import kv_budget_bytes
from inference.engine_requests import DecodingRequest
from inference.local.engine import Engine
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


def bandwidth(device: torch.device, clock: Callable[[], float]) -> float:
    """Measure the bytes a second that the device reads: the best of six sums over a tensor larger than its caches."""
    now = synchronized(clock)
    numbers = torch.ones(2**26 if device.type == "cpu" else 2**29, device=device)
    seconds = []
    for _ in range(6):
        started = now()
        numbers.sum()
        seconds.append(now() - started)
    return numbers.nbytes / min(seconds)


def floor_s(loaded: LoadedModel, batch: int, bytes_per_s: float) -> float:
    """Compute the seconds in which a decoding step's weights and cache are read at full bandwidth."""
    looked_up = loaded.model.get_input_embeddings().weight
    tied = looked_up is loaded.model.get_output_embeddings().weight
    weights = loaded.weight_bytes - (0 if tied else looked_up.nbytes)
    cached = batch * (FLOOR_TOKENS + FLOOR_WARM_UP + FLOOR_STEPS // 2) * loaded.delta_bytes
    return (weights + cached) / bytes_per_s


@torch.inference_mode()
def step_s(loaded: LoadedModel, batch: int, clock: Callable[[], float]) -> float:
    """Return the median seconds of FLOOR_STEPS decoding steps with `batch` rows."""
    longest = FLOOR_TOKENS + FLOOR_WARM_UP + FLOOR_STEPS + 2
    now, engine = synchronized(clock), Engine(loaded, kv_budget_bytes(loaded, batch, longest))
    engine.insert(
        [DecodingRequest(str(row), (1 + row,) * FLOOR_TOKENS, longest - FLOOR_TOKENS) for row in range(batch)]
    )
    for _ in range(FLOOR_WARM_UP):
        engine.step()
    seconds = []
    for _ in range(FLOOR_STEPS):
        started = now()
        engine.step()
        seconds.append(now() - started)
    return median(seconds)
