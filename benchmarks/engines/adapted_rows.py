"""Measures what LoRA adapters cost a decoding step: rows of 0, 1 and 4 adapters in one batch.

    python -m benchmarks.engines.adapted_rows --model smollm2 --json F [--rows 16] [--rank 16] [--dtype bfloat16]

The adapters have random weights for all linear layers. All engines hold the same rows of random tokens and step in
turns. Rows have one of n adapters in turn; with 1 adapter half of them have none. `grouped` is how the engine
multiplies rows, `gathered` multiplies each row by matrices that were copied for it.
"""

import random
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from unittest.mock import patch

import click
import torch
from torch import Tensor

from benchmarks.engines.engine_options import Clock, clock_option, threads_option
from benchmarks.harness import Column, Json, Results, json_option, print_table
from cli.option_types import CommaSeparated
from cli.service_access import settings_with
from inference.local.engine import Engine
from inference.local.forward.adapters import Adapters, LowRank
from inference.local.forward.fused_model import JOINED
from inference.local.loading.adapter_loading import side_by_side, sizes
from inference.local.loading.model_loading import LoadedModel, load_model
from inference.sequences import Sequence

KV_BUDGET_BYTES = 2**31  # more than any of these batches takes
NAMES = ("a", "b", "c", "d")
BATCHES: dict[int, tuple[str, ...]] = {0: ("",), 1: ("a", ""), 4: NAMES}  # the rows' adapters, repeated
COLUMNS: dict[str, Column] = {
    "adapters": "adapters",
    "products": "products",
    "ms a step": "step_ms:.1f",
    "× without": "times:.2f",
}


def _gathered(adapters: Adapters, outputs: Tensor, x: Tensor, of_layer: Mapping[str, LowRank]) -> Tensor:
    """Add to a decoding step's outputs, like `Adapters.add_to`, by matrices that are copied for each row."""
    if adapters.present is None:
        return outputs
    places = {name: place for place, name in enumerate(of_layer)}
    rows = torch.tensor([row for row, name in enumerate(adapters.present.names) if name])
    of_rows = torch.tensor([places[name] for name in adapters.present.names if name])
    down, up = _stacked(of_layer)
    inputs = x.index_select(0, rows).to(down.dtype)[:, None]
    added = inputs.bmm(down.index_select(0, of_rows)).bmm(up.index_select(0, of_rows))
    return outputs.index_add_(0, rows, added[:, 0].to(outputs.dtype))


_STACKS: dict[int, tuple[Tensor, Tensor]] = {}  # by the layer's products, which live as long as the program


def _stacked(of_layer: Mapping[str, LowRank]) -> tuple[Tensor, Tensor]:
    if id(of_layer) not in _STACKS:
        products = of_layer.values()
        _STACKS[id(of_layer)] = torch.stack([one.down for one in products]), torch.stack([one.up for one in products])
    return _STACKS[id(of_layer)]


@click.command(help=__doc__)
@click.option("--model", required=True, help="A fetched model's name or a directory.")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), default="bfloat16", show_default=True)
@click.option("--rows", default=16, show_default=True)
@click.option("--rank", default=16, show_default=True)
@click.option("--prompt", default=64, show_default=True, help="Tokens of each row at the beginning.")
@click.option("--steps", default=40, show_default=True)
@click.option("--adapters", "numbers", type=CommaSeparated(int), default="0,1,4", show_default=True)
@threads_option
@clock_option
@json_option
def main(
    model: str,
    dtype: str,
    rows: int,
    rank: int,
    prompt: int,
    steps: int,
    numbers: list[int],
    clock: Clock,
    results: Results,
) -> None:
    """Print the median step with each number of adapters, by both ways of multiplying."""
    directory = settings_with(model=model).model
    loaded = load_model(directory, dtype=dtype)
    loaded = replace(loaded, eos_ids=frozenset(), adapters=_random_adapters(loaded, rank))
    ways = [(number, way) for number in numbers for way in (("grouped", "gathered") if number else ("none",))]
    engines = {one: _filled(loaded, rows, prompt, steps, BATCHES[one[0]]) for one in ways}
    took_s: dict[tuple[int, str], list[float]] = {one: [] for one in ways}
    for _ in range(steps):
        for one, engine in engines.items():
            with patch.object(Adapters, "add_to", _gathered) if one[1] == "gathered" else nullcontext():
                began = clock()
                engine.step()
                took_s[one].append(clock() - began)
    plain_s = took_s.get((0, "none"), [1.0])
    lines: list[Json] = [
        {
            "adapters": number,
            "products": way,
            "step_ms": 1000 * median(of_way),
            "times": median(each / plain for each, plain in zip(of_way, plain_s, strict=True)),
            "step_s": of_way,
        }
        for (number, way), of_way in took_s.items()
    ]
    results.write(lines)
    title = f"{Path(directory).name}, {dtype}, {rows} rows, rank {rank}, {torch.get_num_threads()} threads"
    print_table(lines, COLUMNS, f"{title}, {clock.__name__}")


def _random_adapters(loaded: LoadedModel, rank: int) -> Adapters:
    """Let adapters of small random weights change all linear layers of the model."""
    torch.manual_seed(1)
    adapters, added = Adapters(NAMES), {}
    for number in range(len(loaded.model.model.layers)):
        for parts in JOINED.values():
            paths = [f"model.layers.{number}.{part}" for part in parts]
            shapes = [sizes(loaded.model.get_submodule(path)) for path in paths]
            outputs = [each for _, each in shapes]
            added[paths[0]] = {
                name: side_by_side([_random(*shape, rank) for shape in shapes], outputs) for name in NAMES
            }
    loaded.decoder.adapt(adapters, added)
    return adapters


def _random(inputs: int, outputs: int, rank: int) -> LowRank:
    return LowRank(torch.randn(inputs, rank) * 0.01, torch.randn(rank, outputs) * 0.01)


def _filled(loaded: LoadedModel, rows: int, prompt: int, steps: int, names: tuple[str, ...]) -> Engine:
    """Return an engine with prefilled rows, which have these adapters in turn and outlast all steps."""
    rng, engine = random.Random(0), Engine(loaded, KV_BUDGET_BYTES)
    vocabulary = loaded.model.config.vocab_size
    asked = [
        Sequence(str(number), tuple(rng.randrange(vocabulary) for _ in range(prompt)), steps + 8, adapter=name)
        for number, name in enumerate(islice(cycle(names), rows))
    ]
    engine.insert(asked)
    engine.step()  # warms up
    return engine


if __name__ == "__main__":
    main()
