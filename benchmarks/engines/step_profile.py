"""Profiles a decoding step: the time of its matrix products alone, and the share of each kind of operation.

    python -m benchmarks.engines.step_profile --model DIR --rows 16,32,64 --dtype bfloat16,float32 [--json F]

All rows begin at once with prompts of 52 random tokens, and only steps are timed. The products are the step's linear
layers alone, called in their order with as many rows; steps and products alternate. Shares come from a second run under
torch's profiler, which makes small operations look slower than they are.
"""

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from statistics import mean, median
from time import perf_counter, process_time

import click
import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.engines.compared_engines import KV_BUDGET_BYTES
from benchmarks.harness import Column, Json, Results, json_option, print_table
from cli.option_types import CommaSeparated
from inference.local.engine import Engine
from inference.local.fused_model import FusedModel
from inference.local.loading.model_loading import LoadedModel, load_model
from inference.sequences import Sequence

# Tokens of each prompt, decoding steps that are timed, and steps before them; enough for a stable median, not tuned.
FLOOR_TOKENS, FLOOR_STEPS, FLOOR_WARM_UP = 128, 32, 4


def synchronized(clock: Callable[[], float]) -> Callable[[], float]:
    """Make a clock that is read after the device has finished its queued work."""

    def now() -> float:
        if torch.cuda.is_available() and not torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()
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


@torch.inference_mode()
def floor_share(loaded: LoadedModel, batch: int, bytes_per_s: float, clock: Callable[[], float]) -> float:
    """Measure the share of a decoding step that reading weights and cache at full bandwidth would take."""
    now, engine = synchronized(clock), Engine(loaded, KV_BUDGET_BYTES)
    engine.insert(
        [Sequence(str(row), (1 + row,) * FLOOR_TOKENS, FLOOR_WARM_UP + FLOOR_STEPS + 2) for row in range(batch)]
    )
    for _ in range(FLOOR_WARM_UP):
        engine.step()
    seconds = []
    for _ in range(FLOOR_STEPS):
        started = now()
        engine.step()
        seconds.append(now() - started)
    model = loaded.model
    looked_up = model.get_input_embeddings().weight
    tied = looked_up is model.get_output_embeddings().weight
    weights = loaded.weight_bytes - (0 if tied else looked_up.nbytes)
    cached = batch * (FLOOR_TOKENS + FLOOR_WARM_UP + FLOOR_STEPS // 2) * loaded.delta_bytes
    return (weights + cached) / bytes_per_s / median(seconds)


PROMPT_TOKENS = 52  # a chat message
WARM_UP, PROFILED = 5, 20  # steps; with 100 timed steps the cache does not grow during the profiled ones
CLOCKS: dict[str, Callable[[], float]] = {"wall": perf_counter, "cpu": process_time}
COLUMNS: dict[str, Column] = {
    "dtype": "dtype",
    "rows": "rows",
    "ms a step": "step_ms:.2f",
    "mean": "mean_step_ms:.2f",
    "ms of products": "products_ms:.2f",
    "ratio": "ratio:.2f",
    "shares (profiled)": lambda row: ", ".join(f"{kind} {share:.1%}" for kind, share in row["shares"].items()),
}
# The kind of an operation by the first of these parts that its name contains, else "other".
KINDS = {
    "linear": "matrix products",
    "addmm": "matrix products",
    "aten::mm": "matrix products",
    "bmm": "attention",
    "attention": "attention",
    "softmax": "attention",
    "embedding_bag": "attention",
    "index_copy": "cache writes",
    "copy_": "copies",
    "silu": "activation",
    "pow": "norms",
    "mean": "norms",
    "rsqrt": "norms",
    "norm": "norms",
    "aten::cat": "rotation",
    "roll": "rotation",
    "addcmul": "rotation",
}


@click.command(help=__doc__)
@click.option("--model", required=True, help="Directory of a model that FusedModel runs.")
@click.option("--rows", type=CommaSeparated(int), default="16,32,64", show_default=True, help="Numbers of rows.")
@click.option("--dtype", "dtypes", type=CommaSeparated(), default="bfloat16,float32", show_default=True)
@click.option("--steps", default=100, show_default=True, help="Timed steps.")
@click.option("--threads", default=0, show_default=True, help="CPU threads; 0: torch's own number.")
@click.option("--clock", type=click.Choice([*CLOCKS]), default="wall", show_default=True, help="cpu: of the process.")
@json_option
def main(
    model: str, rows: list[int], dtypes: list[str], steps: int, threads: int, clock: str, results: Results
) -> None:
    """Print ms a step, ms of its matrix products alone, their ratio, and the share of each kind of operation."""
    if threads:
        torch.set_num_threads(threads)
    figures: list[Json] = []
    for dtype in dtypes:
        loaded = replace(load_model(model, "cpu", dtype), eos_ids=frozenset())
        for count in rows:
            found = step_figures(loaded, count, steps, CLOCKS[clock])
            figures.append({"dtype": dtype, "rows": count, **found})
    print_table(figures, COLUMNS)
    results.write(figures)


@torch.inference_mode()
def step_figures(loaded: LoadedModel, rows: int, steps: int, clock: Callable[[], float]) -> Json:
    """Time steps and their products in turns; the mean of a step includes growth of the cache."""
    decoder = loaded.decoder
    if not isinstance(decoder, FusedModel):
        raise click.UsageError(f"{loaded.name} is not run by FusedModel")
    rng, engine = random.Random(0), Engine(loaded, KV_BUDGET_BYTES)
    vocabulary, tokens = loaded.model.config.get_text_config().vocab_size, WARM_UP + steps + PROFILED + 2
    prompts = [tuple(rng.randrange(vocabulary) for _ in range(PROMPT_TOKENS)) for _ in range(rows)]
    engine.insert([Sequence(str(row), prompt, tokens) for row, prompt in enumerate(prompts)])
    multiply = products_of(decoder, rows)
    for _ in range(WARM_UP):
        engine.step()
        multiply()
    steps_s, products_s = [], []
    for _ in range(steps):
        started = clock()
        engine.step()
        between = clock()
        multiply()
        steps_s.append(between - started)
        products_s.append(clock() - between)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        for _ in range(PROFILED):
            engine.step()
    step_s, product_s = median(steps_s), median(products_s)
    return {
        "step_ms": round(1000 * step_s, 3),
        "mean_step_ms": round(1000 * mean(steps_s), 3),
        "products_ms": round(1000 * product_s, 3),
        "ratio": round(step_s / product_s, 3),
        "shares": shares_of({each.key: each.self_cpu_time_total for each in profiled.key_averages()}),
    }


def products_of(decoder: FusedModel, rows: int) -> Callable[[], None]:
    """Make a function that calls a step's linear layers with random inputs of `rows` rows."""
    embedding = decoder._embedding
    x = torch.randn(rows, embedding.shape[1]).to(embedding.dtype)
    first = decoder._layers[0]
    attended = torch.randn(rows, decoder._heads * decoder._dim).to(x.dtype)
    activated = first.gate_up(x).chunk(2, -1)[0].contiguous()

    def multiply() -> None:
        for layer in decoder._layers:
            layer.qkv(x)
            layer.output.add_to(x, attended)
            layer.gate_up(x)
            layer.down.add_to(x, activated)
        decoder._head(x)

    return multiply


def shares_of(took: dict[str, float]) -> dict[str, float]:
    """Sum the seconds of operations by kind; returns the share of each kind, the largest first."""
    seconds: dict[str, float] = defaultdict(float)
    for name, own in took.items():
        seconds[next((kind for part, kind in KINDS.items() if part in name), "other")] += own
    total = sum(seconds.values())
    return {kind: round(seconds[kind] / total, 4) for kind in sorted(seconds, key=lambda kind: -seconds[kind])}


if __name__ == "__main__":
    main()
