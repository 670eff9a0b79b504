"""How many CPU threads a worker computes with: more only where they make its steps shorter.

Threads wait for each other after each operation. If one of them loses its core to another process, all of them wait:
with two threads on two cores, one of which was busy with something else, a step of the bundled model took 196 ms
instead of 0.5, and with one thread 0.6 either way (docs/results/engines.md).
"""

from collections.abc import Iterator

import torch

from inference.local.cpu.cpu_dtype import LARGE_MODEL_PARAMETERS
from inference.local.engine_profile import Grid, measure
from inference.local.model_loading import LoadedModel

# So many times as long may a step take with fewer threads. The bundled model's takes 1.1 times as long with one thread
# as with two, SmolLM2's 1.5 times. Any value from 1.15 to 1.4 would do.
WORTH = 1.25
STEPS = Grid(sizes=(8,), lengths=(16,), steps=8, repeats=1)
TURNS = 3  # the shortest counts: whatever else runs only lengthens steps


def worthwhile_threads(loaded: LoadedModel, kv_budget_bytes: int, most: int) -> int:
    """The fewest threads with which a decoding step of some rows takes at most `WORTH` times as long as with more.

    At most `most`. No other engine may hold memory on the device meanwhile; torch's number of threads is left changed.
    """
    if loaded.parameters >= LARGE_MODEL_PARAMETERS:  # its operations are large enough for every thread
        return most
    step_s: dict[int, float] = {}
    for _ in range(TURNS):
        for threads in halved(most):
            torch.set_num_threads(threads)
            steps = measure(loaded, kv_budget_bytes, STEPS).decode_steps
            if not steps:  # so little memory holds few rows, which are no work for many threads
                return 1
            step_s[threads] = min(steps[0][2], step_s.get(threads, steps[0][2]))
    return min(threads for threads, seconds in step_s.items() if seconds <= WORTH * min(step_s.values()))


def halved(most: int) -> Iterator[int]:
    """`most`, half of it, and so on down to 1."""
    while most >= 1:
        yield most
        most //= 2
