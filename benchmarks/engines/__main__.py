"""Compares our engine with those of transformers: same prompts, answer lengths and largest batch, interleaved runs.

    python -m benchmarks.engines --json engines.json --size 30m --batch 8 --batch 16

Prints one table. Answer lengths are forced by limits, from BATON's mix or from the real requests of --data DIR.
"""

import json
import platform
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Several
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any, Protocol

import click
import torch

from benchmarks.engines.baton_baselines import BatonBaseline, PrefillDecode
from benchmarks.engines.engine_workload import (
    SHAPES,
    load_for_serving,
    mixed_lengths,
    random_model,
    real_lengths,
    sequences,
)
from benchmarks.engines.memory_floor import bandwidth, floor_share, synchronized
from benchmarks.engines.our_engines import Continuous, EngineRun, RunToCompletion
from benchmarks.engines.transformers_engines import Generate, GenerateBatch
from inference.local.model_loading import LoadedModel
from inference.sequences import Sequence

GENERATE, GENERATE_BATCH = "model.generate (Benchmark)", "generate_batch"
RUN_TO_COMPLETION, CONTINUOUS = "ours, run-to-completion", "ours, continuous (BATON-PD)"
CLOCKS = {"wall": perf_counter, "cpu": process_time}
CLOCK_HELP = "cpu: the process's own seconds, for a machine that others use as well"


class ComparedEngine(Protocol):
    """An engine that serves all sequences with at most `batch` rows at once."""

    def serve(self, sequences: Several[Sequence], batch: int) -> EngineRun:
        """Serve all sequences."""
        ...


@dataclass(slots=True)
class ForwardTime:
    """Seconds inside the model's forward pass."""

    seconds: float = 0.0


@contextmanager
def forward_time(models: Several[torch.nn.Module], clock: Callable[[], float]) -> Iterator[ForwardTime]:
    """Time each forward pass, on CUDA to the end of its kernels; it slows a run, so such runs are not compared."""
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
    """The run, and the seconds that it took by this clock."""
    now = synchronized(clock)
    started = now()
    run = serve()
    return run, now() - started


@dataclass(frozen=True, slots=True)
class Trial:
    """What every engine serves, and how it is timed."""

    sequences: list[Sequence]
    batch: int
    repeats: int
    checked: int  # of the first sequences, answers are compared with those of `model.generate` for each alone
    clock: Callable[[], float]


def overhead_share(engine: ComparedEngine, trial: Trial, models: Several[torch.nn.Module]) -> float:
    """Warm an engine up; returns the share of its time that it spends outside the forward pass."""
    engine.serve(trial.sequences[: 2 * trial.batch], trial.batch)
    with forward_time(models, trial.clock) as forward:
        _, seconds = timed(partial(engine.serve, trial.sequences, trial.batch), trial.clock)
    return 1 - forward.seconds / seconds


def compare(model: torch.nn.Module, loaded: LoadedModel, trial: Trial) -> list[dict[str, Any]]:
    """A table row for each engine: medians of interleaved runs, in one process.

    `model` is as transformers loads it, `loaded` the same model as our engine loads it.
    """
    plain, models = replace(loaded, model=model), list({id(each): each for each in (model, loaded.decoder)}.values())
    paged = GenerateBatch(plain, trial.batch, longest=max(len(row.prompt_ids) + row.limit for row in trial.sequences))
    engines: dict[str, ComparedEngine] = {
        GENERATE: Generate(plain),
        RUN_TO_COMPLETION: RunToCompletion(loaded),
        "PD": PrefillDecode(loaded),
        "BATON": BatonBaseline(loaded),
        CONTINUOUS: Continuous(loaded),
        GENERATE_BATCH: paged,
    }
    try:
        expected = Generate(plain).serve(trial.sequences[: trial.checked], 1).answers
        outside = {name: overhead_share(engine, trial, models) for name, engine in engines.items()}
        runs: dict[str, list[tuple[EngineRun, float]]] = {name: [] for name in engines}
        for _ in range(trial.repeats):
            for name, engine in engines.items():
                runs[name].append(timed(partial(engine.serve, trial.sequences, trial.batch), trial.clock))
    finally:
        paged.close()

    def speed_ratio(name: str, peer: str) -> float:
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
                "identical": all(expected.items() <= run.answers.items() for run, _ in results),
                "times_generate": speed_ratio(name, GENERATE),
                "times_generate_batch": speed_ratio(name, GENERATE_BATCH),
            }
        )
    return lines


def table(lines: Several[dict[str, Any]]) -> str:
    """The rows as a table in Markdown."""
    head = "batch | engine | valid tokens/s | × generate | × generate_batch | idle rows | outside forward | KV MiB"
    rows = [f"| {head} | identical |", "|" + "---|" * 9]
    for line in lines:
        idle = "–" if line["idle_row_share"] is None else f"{line['idle_row_share']:.1%}"
        rows.append(
            f"| {line['batch']} | {line['engine']} | {line['valid_tokens_per_s']:.0f} | {line['times_generate']:.2f} "
            f"| {line['times_generate_batch']:.2f} | {idle} | {line['step_overhead_share']:.1%} "
            f"| {line['peak_kv_bytes'] / 2**20:.1f} | {'yes' if line['identical'] else 'no'} |"
        )
    return "\n".join(rows)


@click.command()
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the lines here as well")
@click.option("--device", default="cpu", show_default=True)
@click.option("--size", "sizes", type=click.Choice(sorted(SHAPES)), multiple=True, default=("tiny",), show_default=True)
@click.option("--batch", "batches", type=int, multiple=True, default=(8, 16, 32), show_default=True)
@click.option("--prompts", default=96, show_default=True)
@click.option("--repeats", default=3, show_default=True)
@click.option("--threads", default=1, show_default=True, help="Of torch, the same for all")
@click.option("--clock", type=click.Choice(["wall", "cpu"]), default="wall", show_default=True, help=CLOCK_HELP)
@click.option("--checked", default=16, show_default=True, help="Prompts whose answers are compared with generate alone")
@click.option("--data", type=click.Path(exists=True, path_type=Path), help="Take the lengths of its real requests")
@click.option("--seed", default=0, show_default=True)
def main(
    json_file: Path | None,
    device: str,
    sizes: tuple[str, ...],
    batches: tuple[int, ...],
    prompts: int,
    repeats: int,
    threads: int,
    clock: str,
    checked: int,
    data: Path | None,
    seed: int,
) -> None:
    """Compare the engines."""
    torch.set_num_threads(threads)
    machine = torch.cuda.get_device_name() if device.startswith("cuda") else f"{platform.machine()}, {threads} threads"
    lengths = real_lengths(data, prompts, seed) if data else mixed_lengths(prompts, seed)
    everything = []
    for size in sizes:
        model = random_model(size, device, torch.float32 if device == "cpu" else torch.bfloat16)
        loaded = load_for_serving(model, size)
        work = sequences(lengths, model.config.vocab_size, seed)
        trials = [Trial(work, batch, repeats, min(checked, prompts), CLOCKS[clock]) for batch in batches]
        lines = [line for trial in trials for line in compare(model, loaded, trial)]
        bytes_per_s = bandwidth(model.device, CLOCKS[clock])
        shares = {batch: floor_share(loaded, batch, bytes_per_s, CLOCKS[clock]) for batch in batches}
        for line in lines:
            share = shares[line["batch"]] if line["engine"] == CONTINUOUS else None
            everything.append({"size": size, "device": machine, **line, "bandwidth_floor_share": share})
        click.echo(f"\n{size}, {machine}, {prompts} prompts, {'real' if data else 'mixed'} lengths\n\n{table(lines)}\n")
        for batch, share in shares.items():
            click.echo(f"batch {batch}: a decoding step reaches {share:.1%} of {bytes_per_s / 1e9:.0f} GB/s")
        if json_file is not None:
            json_file.write_text(json.dumps(everything, indent=1) + "\n")


if __name__ == "__main__":
    main()
