"""SCLS Fig. 10: how well the fitted curves of Eq. (3) and (4) tell the seconds of prefills, iterations and batches.

    python -m benchmarks.engines.curve_errors [--model DIRECTORY] [--json F]

Our engine, and `model.generate` of transformers, the paper's HF. The curves are fitted to prefills and short runs of
iterations; whole batches of 128 iterations (`--iterations`) are measured apart from those and estimated by Eq. (1).
"""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import click
import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from transformers import GenerationConfig

from inference.local.engine import Engine
from inference.local.model_loading import LoadedModel, load_model
from inference.sequences import Sequence
from learning.estimators.cost_curves import Timing, fit_curves
from settings import BUNDLED_MODEL

SIZES, LENGTHS = (1, 2, 4, 8, 16), (16, 64, 256)
STEPS = 16  # iterations whose mean is the time of one
REPEATS = 3
KV_BUDGET_BYTES = 2**32  # memory is not what is measured

Run = Callable[[list[tuple[int, ...]], int], float]  # seconds to answer prompts of one length with so many tokens each


@click.command()
@click.option("--model", default=str(BUNDLED_MODEL), show_default=False, help="Directory; the bundled one if unset.")
@click.option("--iterations", default=128, show_default=True, help="Of the whole batches.")
@click.option("--threads", default=0, show_default=True, help="CPU threads; 0: torch's own number.")
@click.option("--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Write the figures there.")
def main(model: str, iterations: int, threads: int, json_file: Path | None) -> None:
    """Print the errors of the curves for both engines."""
    if threads:
        torch.set_num_threads(threads)
    table = Table("engine", "prefill RMSE ms", "of mean", "iteration RMSE ms", "of mean", "batch |error| s", "of mean")
    figures: dict[str, Any] = {}
    for name, engine in (("ours", our_engine), ("transformers", transformers_engine)):
        loaded = load_model(model, "cpu", "auto", None)
        figures[name] = found = errors(engine(loaded), loaded, iterations)
        prefill, step, batch = found["prefill"], found["iteration"], found["batch"]
        table.add_row(
            name,
            *(f"{1000 * prefill['rmse_s']:.2f}", f"{prefill['of_mean']:.1%}"),
            *(f"{1000 * step['rmse_s']:.3f}", f"{step['of_mean']:.1%}"),
            *(f"{batch['mean_error_s']:.3f}", f"{batch['of_mean']:.1%}"),
        )
    Console().print(table)
    if json_file:
        json_file.write_text(json.dumps(figures, indent=1) + "\n")


def our_engine(loaded: LoadedModel) -> Run:
    """One static batch on our engine."""
    engine = Engine(replace(loaded, eos_ids=frozenset()), KV_BUDGET_BYTES)

    def run(prompts: list[tuple[int, ...]], tokens: int) -> float:
        started = perf_counter()
        engine.run([Sequence(str(row), prompt, tokens) for row, prompt in enumerate(prompts)])
        return perf_counter() - started

    return run


def transformers_engine(loaded: LoadedModel) -> Run:
    """One call of `generate`, greedy and without an end of sequence."""

    def run(prompts: list[tuple[int, ...]], tokens: int) -> float:
        ids = torch.tensor(prompts, device=loaded.device)
        config = GenerationConfig(max_new_tokens=tokens, do_sample=False, eos_token_id=-1, pad_token_id=loaded.pad_id)
        started = perf_counter()
        loaded.model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
        return perf_counter() - started

    return run


def errors(run: Run, loaded: LoadedModel, iterations: int) -> dict[str, Any]:
    """Fit the curves and compare them with what was measured."""
    rng = random.Random(0)
    vocabulary = loaded.model.config.get_text_config().vocab_size
    prefills: list[Timing] = []
    steps: list[Timing] = []
    batches: list[Timing] = []
    for size, length in product(SIZES, LENGTHS):
        prompts = [tuple(rng.randrange(vocabulary) for _ in range(length)) for _ in range(size)]
        run(prompts, 2)  # allocates and warms up
        first, some, all_s = (median(run(prompts, n) for _ in range(REPEATS)) for n in (1, 1 + STEPS, iterations))
        prefills.append((size, length, first))
        steps.append((size, length + (STEPS + 1) / 2, (some - first) / STEPS))
        batches.append((size, length, all_s))
    curves = fit_curves(prefills, steps)
    whole_s = np.array([seconds for _, _, seconds in batches])
    whole = np.abs([curves.serve_s(n, int(length), iterations - 1) for n, length, _ in batches] - whole_s)
    return {
        "prefill": _rmse(prefills, lambda size, length: curves.prefill_s(size, int(length))),
        "iteration": _rmse(steps, curves.decode_step_s),
        "batch": {
            "iterations": iterations,
            "mean_error_s": round(float(whole.mean()), 5),
            "of_mean": round(float(whole.mean() / whole_s.mean()), 4),
            "largest_of_its_batch": round(float((whole / whole_s).max()), 4),
        },
        "timings": {"prefills": prefills, "iterations": steps, "batches": batches},
        "curves": {"prefill": curves.prefill, "decode": curves.decode},
    }


def _rmse(timings: list[Timing], estimated: Callable[[int, float], float]) -> dict[str, float]:
    seconds = np.array([one for _, _, one in timings])
    error = np.array([estimated(size, tokens) for size, tokens, _ in timings]) - seconds
    rmse = float(np.sqrt(np.mean(error**2)))
    return {"rmse_s": round(rmse, 6), "of_mean": round(rmse / float(seconds.mean()), 4)}


if __name__ == "__main__":
    main()
