"""Compares our engine with others: the same prompts, answer lengths and largest batch, in interleaved runs.

    python -m benchmarks.engines --json engines.json --size 30m --batch 8 --batch 16
    python -m benchmarks.engines --model smollm2 --dtype bfloat16 --lengths chat --threads 2 --peers vllm \\
        --only continuous --batch 16 --batch 32 --json engines_vllm.json
    python -m benchmarks.engines --device cuda

Answer lengths are forced by limits, in BATON's mix or as in chats. With --device, `device_comparison.py` compares all
that a device decides, and has options of its own (--device cuda --help); without it, a CPU computes.
"""

import platform
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from time import perf_counter
from typing import get_args

import click
import torch

from benchmarks.engines import device_comparison
from benchmarks.engines.bandwidth_floor import bandwidth, floor_share
from benchmarks.engines.compared_engines import VllmEngine
from benchmarks.engines.engine_options import Clock, clock_option
from benchmarks.engines.engine_workload import (
    SHAPES,
    chat_lengths,
    load_for_serving,
    mixed_lengths,
    model_of,
    random_model,
    sequences,
)
from benchmarks.engines.interleaved_runs import CONTINUOUS, SHORT_NAMES, Trial, compare
from benchmarks.harness import Column, Results, json_option, print_table
from benchmarks.inputs.changed_models import MODEL_SIZES, ModelSize, enlarged_model
from benchmarks.outside_engines.engine_environments import engine_python
from benchmarks.outside_engines.server_processes import Dtype
from cli.option_types import CommaSeparated
from cli.service_access import settings_with

COLUMNS: dict[str, Column] = {
    "batch": "batch",
    "engine": "engine",
    "valid tokens/s": "valid_tokens_per_s:.0f",
    "× generate": "times_generate:.2f",
    "× generate_batch": "times_generate_batch:.2f",
    "× vLLM": "times_vllm:.2f",
    "idle rows": "idle_row_share:.1%",
    "outside forward": "step_overhead_share:.1%",
    "KV MiB": lambda line: f"{line['peak_kv_bytes'] / 2**20:.1f}",
    "identical": "identical",
}
ENGINES = CommaSeparated(click.Choice(list(SHORT_NAMES)))


@click.command(help=__doc__)
@json_option
@click.option("--size", "sizes", type=click.Choice(sorted(SHAPES)), multiple=True, default=("tiny",), show_default=True)
@click.option("--model", help="A fetched model's name or a directory, in place of --size.")
@click.option("--model-size", type=click.Choice(MODEL_SIZES), help="The bundled model enlarged, in place of --size.")
@click.option("--dtype", type=click.Choice(get_args(Dtype)), default="float32", show_default=True)
@click.option("--only", type=ENGINES, default=",".join(SHORT_NAMES), show_default=True, help="Engines.")
@click.option("--peers", type=click.Choice(["vllm"]), help="vLLM beside them; `make engines` installs it.")
@click.option("--lengths", "mix", type=click.Choice(["mixed", "chat"]), default="mixed", show_default=True)
@click.option("--batch", "batches", type=int, multiple=True, default=(8, 16, 32), show_default=True)
@click.option("--prompts", default=96, show_default=True)
@click.option("--repeats", default=3, show_default=True)
@click.option("--threads", default=1, show_default=True, help="Of torch, the same for all")
@clock_option
@click.option("--checked", default=16, show_default=True, help="Prompts whose answers are compared with generate alone")
def main(
    results: Results,
    sizes: tuple[str, ...],
    model: str | None,
    model_size: ModelSize | None,
    dtype: Dtype,
    only: list[str],
    peers: str | None,
    mix: str,
    batches: tuple[int, ...],
    prompts: int,
    repeats: int,
    threads: int,
    clock: Clock,
    checked: int,
) -> None:
    """Compare the engines at each size and batch."""
    names = [SHORT_NAMES[name] for name in only]
    if peers and clock is not perf_counter:
        raise click.BadParameter("vLLM's processes have CPU seconds of their own: --clock wall", param_hint="--clock")
    torch.set_num_threads(threads)
    machine = f"{platform.machine()}, {threads} threads"
    drawn = chat_lengths if mix == "chat" else mixed_lengths
    lengths = drawn(prompts, 0)
    everything = []
    chosen = model or model_size
    for size in (chosen,) if chosen else sizes:
        with tempfile.TemporaryDirectory(prefix="magnus-engines-") as made:
            made_in = Path(made)
            if model:
                directory = Path(settings_with(model=model).model)  # resolves the name of a fetched model
            elif model_size:
                directory = enlarged_model(model_size, made_in)
            else:
                directory = made_in / size
                random_model(size, "cpu", getattr(torch, dtype)).save_pretrained(directory)
            causal_lm = model_of(directory, "cpu", dtype)
            loaded = load_for_serving(causal_lm, size)
            work = sequences(lengths, causal_lm.config.vocab_size, 0)
            trials = [Trial(work, batch, repeats, min(checked, prompts), clock) for batch in batches]
            lines = []
            for trial in trials:
                terms = (directory, dtype, trial.batch, trial.longest, threads, made_in / "vllm.log")
                with VllmEngine(engine_python("vllm"), *terms) if peers else nullcontext() as vllm:
                    lines += compare(causal_lm, loaded, trial, names, vllm)
        bytes_per_s = bandwidth(loaded.device, clock)
        shares = {batch: floor_share(loaded, batch, bytes_per_s, clock) for batch in batches}
        for line in lines:
            share = shares[line["batch"]] if line["engine"] == CONTINUOUS else None
            everything.append({"size": size, "dtype": dtype, "device": machine, **line, "bandwidth_floor_share": share})
        print_table(lines, COLUMNS, f"{size}, {dtype}, {machine}, {prompts} prompts, {mix} lengths")
        for batch, share in shares.items():
            click.echo(f"batch {batch}: a decoding step reaches {share:.1%} of {bytes_per_s / 1e9:.0f} GB/s")
        results.write(everything)


if __name__ == "__main__":
    named = any(argument.partition("=")[0] == "--device" for argument in sys.argv)
    (device_comparison.main if named else main)()
