"""Compares our engine with others: the same prompts, answer lengths and largest batch, in interleaved runs.

    python -m benchmarks.engines --json engines.json --size 30m --batch 8 --batch 16
    python -m benchmarks.engines --model smollm2 --dtype bfloat16 --lengths chat --threads 2 --peers vllm \\
        --only continuous --batch 16 --batch 32 --json engines_vllm.json

Answer lengths are forced by limits, in BATON's mix or as in chats.
"""

import platform
import tempfile
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Several
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Protocol, get_args

import click
import torch

from benchmarks.engines.bandwidth_floor import bandwidth, floor_share, synchronized
from benchmarks.engines.baton_baselines import BatonBaseline, PrefillDecode
from benchmarks.engines.compared_engines import (
    Continuous,
    EngineRun,
    Generate,
    GenerateBatch,
    RunToCompletion,
    VllmEngine,
)
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
from benchmarks.harness import Column, Json, Results, json_option, print_table
from benchmarks.inputs.changed_models import MODEL_SIZES, ModelSize, enlarged_model
from benchmarks.outside_engines.server_processes import Dtype
from cli.option_types import CommaSeparated
from cli.service_access import settings_with
from inference.local.loading.model_loading import LoadedModel
from inference.sequences import Sequence

GENERATE, GENERATE_BATCH = "model.generate (Benchmark)", "generate_batch"
RUN_TO_COMPLETION, CONTINUOUS = "ours, run-to-completion", "ours, continuous (BATON-PD)"
VLLM = "vLLM"
SHORT_NAMES = {
    "generate": GENERATE,
    "completion": RUN_TO_COMPLETION,
    "pd": "PD",
    "baton": "BATON",
    "continuous": CONTINUOUS,
    "generate_batch": GENERATE_BATCH,
}
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


class ComparedEngine(Protocol):
    """An engine that serves all sequences with at most `batch` rows at once."""

    def serve(self, sequences: Several[Sequence], batch: int) -> EngineRun:
        """Serve all sequences."""
        ...


@dataclass(slots=True)
class ForwardTime:
    """The seconds spent in the model's forward pass."""

    seconds: float = 0.0


@contextmanager
def forward_time(models: Several[torch.nn.Module], clock: Callable[[], float]) -> Iterator[ForwardTime]:
    """Time each forward pass, on CUDA to the end of its kernels. This slows a run, so its speed is not compared."""
    spent, began, now = ForwardTime(), 0.0, synchronized(clock)

    def before(*_: Any) -> None:
        nonlocal began
        began = now()

    def after(*_: Any) -> None:
        spent.seconds += now() - began

    hooks = [model.register_forward_pre_hook(before) for model in models]
    hooks += [model.register_forward_hook(after) for model in models]
    try:
        yield spent
    finally:
        for hook in hooks:
            hook.remove()


def timed(serve: Callable[[], EngineRun], clock: Callable[[], float]) -> tuple[EngineRun, float]:
    """Time a run by this clock; returns the run and its seconds."""
    now = synchronized(clock)
    started = now()
    run = serve()
    return run, now() - started


@dataclass(frozen=True, slots=True)
class Trial:
    """The sequences that every engine serves, and how they are timed."""

    sequences: list[Sequence]
    batch: int
    repeats: int
    checked: int  # answers that are compared with `model.generate` on a single prompt
    clock: Callable[[], float]

    @property
    def longest(self) -> int:
        """The tokens of the longest prompt with its answer."""
        return max(len(row.prompt_ids) + row.limit for row in self.sequences)


def overhead_share(engine: ComparedEngine, trial: Trial, models: Several[torch.nn.Module]) -> float:
    """Warm an engine up; returns the share of its time outside of the forward pass."""
    engine.serve(trial.sequences[: 2 * trial.batch], trial.batch)
    with forward_time(models, trial.clock) as forward:
        _, seconds = timed(partial(engine.serve, trial.sequences, trial.batch), trial.clock)
    return 1 - forward.seconds / seconds


def compare(
    model: torch.nn.Module, loaded: LoadedModel, trial: Trial, names: Several[str], vllm: VllmEngine | None = None
) -> list[Json]:
    """Measure the named engines, and vLLM if it is given; returns a row for each, with medians of interleaved runs.

    `model` is loaded by transformers, `loaded` is the same model loaded by our engine.
    """
    plain, models = replace(loaded, model=model), list({id(each): each for each in (model, loaded.decoder)}.values())
    makers: dict[str, Callable[[], ComparedEngine]] = {
        GENERATE: lambda: Generate(plain),
        RUN_TO_COMPLETION: lambda: RunToCompletion(loaded),
        "PD": lambda: PrefillDecode(loaded),
        "BATON": lambda: BatonBaseline(loaded),
        CONTINUOUS: lambda: Continuous(loaded),
        GENERATE_BATCH: lambda: GenerateBatch(plain, trial.batch, trial.longest),
    }
    engines = {name: make() for name, make in makers.items() if name in names}
    try:
        expected = Generate(plain).serve(trial.sequences[: trial.checked], 1).answers if trial.checked else {}
        outside: dict[str, float | None] = {
            name: overhead_share(engine, trial, models) for name, engine in engines.items()
        }
        if vllm is not None:
            vllm.serve(trial.sequences[: 2 * trial.batch], trial.batch)
            engines[VLLM], outside[VLLM] = vllm, None
        runs: dict[str, list[tuple[EngineRun, float]]] = {name: [] for name in engines}
        for _ in range(trial.repeats):
            for name, engine in engines.items():
                runs[name].append(timed(partial(engine.serve, trial.sequences, trial.batch), trial.clock))
    finally:
        if isinstance(paged := engines.get(GENERATE_BATCH), GenerateBatch):
            paged.close()

    def speed_ratio(name: str, peer: str) -> float | None:
        if peer not in runs:
            return None
        return median(theirs / ours for (_, theirs), (_, ours) in zip(runs[peer], runs[name], strict=True))

    lines = []
    for name, results in runs.items():
        first, seconds = results[0][0], median(seconds for _, seconds in results)
        lines.append(
            {
                "engine": name,
                "batch": trial.batch,
                "prompts": len(trial.sequences),
                "seconds": seconds,
                "valid_tokens_per_s": sum(row.limit for row in trial.sequences) / seconds,
                "total_tokens_per_s": first.computed_tokens / seconds,
                "idle_row_share": first.idle_rows / first.possible_rows if first.possible_rows else None,
                "step_overhead_share": outside[name],
                "peak_kv_bytes": first.peak_kv_bytes,
                "identical": all(expected.items() <= run.answers.items() for run, _ in results) if expected else None,
                "times_generate": speed_ratio(name, GENERATE),
                "times_generate_batch": speed_ratio(name, GENERATE_BATCH),
                "times_vllm": speed_ratio(name, VLLM),
                "seconds_of_each": [seconds for _, seconds in results],
            }
        )
    return lines


@click.command(help=__doc__)
@json_option
@click.option("--device", default="cpu", show_default=True)
@click.option("--size", "sizes", type=click.Choice(sorted(SHAPES)), multiple=True, default=("tiny",), show_default=True)
@click.option("--model", help="A fetched model's name or a directory, in place of --size.")
@click.option("--model-size", type=click.Choice(MODEL_SIZES), help="The bundled model enlarged, in place of --size.")
@click.option("--dtype", type=click.Choice(get_args(Dtype)), help="float32 on a CPU, bfloat16 on a GPU if unset.")
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
    device: str,
    sizes: tuple[str, ...],
    model: str | None,
    model_size: ModelSize | None,
    dtype: Dtype | None,
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
    on_gpu = device.startswith("cuda")
    machine = torch.cuda.get_device_name() if on_gpu else f"{platform.machine()}, {threads} threads"
    drawn = chat_lengths if mix == "chat" else mixed_lengths
    lengths = drawn(prompts, 0)
    dtype = dtype or ("bfloat16" if on_gpu else "float32")
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
                random_model(size, device, getattr(torch, dtype)).save_pretrained(directory)
            causal_lm = model_of(directory, device, dtype)
            loaded = load_for_serving(causal_lm, size)
            work = sequences(lengths, causal_lm.config.vocab_size, 0)
            trials = [Trial(work, batch, repeats, min(checked, prompts), clock) for batch in batches]
            lines = []
            for trial in trials:
                terms = (directory, dtype, trial.batch, trial.longest, threads, made_in / "vllm.log")
                with VllmEngine(*terms) if peers else nullcontext() as vllm:
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
    main()
