"""Measures engines that serve the same prompts, in interleaved runs, and their time outside of the model."""

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Several
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any, Protocol

import torch

from benchmarks.engines.bandwidth_floor import synchronized
from benchmarks.engines.baton_baselines import BatonBaseline, PrefillDecode
from benchmarks.engines.compared_engines import (
    Continuous,
    EngineRun,
    Generate,
    GenerateBatch,
    RunToCompletion,
    VllmEngine,
    WithoutGraphs,
    kv_budget_bytes,
)
from benchmarks.harness import Json
from inference.local.loading.model_loading import LoadedModel
from inference.sequences import Sequence

GENERATE, GENERATE_BATCH = "model.generate (Benchmark)", "generate_batch"
RUN_TO_COMPLETION, CONTINUOUS = "ours, run-to-completion", "ours, continuous (BATON-PD)"
WITHOUT_GRAPHS = "ours, without graphs"
VLLM = "vLLM"
SHORT_NAMES = {
    "generate": GENERATE,
    "completion": RUN_TO_COMPLETION,
    "pd": "PD",
    "baton": "BATON",
    "continuous": CONTINUOUS,
    "generate_batch": GENERATE_BATCH,
}


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
    inside: bool = True  # whether the time outside of the forward pass is measured, too

    @property
    def longest(self) -> int:
        """The tokens of the longest prompt with its answer."""
        return max(len(row.prompt_ids) + row.limit for row in self.sequences)


def warm_up(engine: ComparedEngine, trial: Trial) -> None:
    """Serve some prompts, so that memory is allocated and kernels are chosen."""
    engine.serve(trial.sequences[: 2 * trial.batch], trial.batch)


def overhead_share(engine: ComparedEngine, trial: Trial, models: Several[torch.nn.Module]) -> float:
    """Return the share of an engine's time outside of the forward pass."""
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
    budget_bytes = kv_budget_bytes(loaded, trial.batch, trial.longest)
    makers: dict[str, Callable[[], ComparedEngine]] = {
        GENERATE: lambda: Generate(plain),
        RUN_TO_COMPLETION: lambda: RunToCompletion(loaded, budget_bytes),
        "PD": lambda: PrefillDecode(loaded, budget_bytes),
        "BATON": lambda: BatonBaseline(loaded, budget_bytes),
        CONTINUOUS: lambda: Continuous(loaded, budget_bytes),
        WITHOUT_GRAPHS: lambda: WithoutGraphs(loaded, budget_bytes),
        GENERATE_BATCH: lambda: GenerateBatch(plain, trial.batch, trial.longest),
    }
    engines = {name: make() for name, make in makers.items() if name in names}
    try:
        expected = Generate(plain).serve(trial.sequences[: trial.checked], 1).answers if trial.checked else {}
        outside: dict[str, float | None] = {}
        for name, engine in engines.items():
            warm_up(engine, trial)
            outside[name] = overhead_share(engine, trial, models) if trial.inside else None
        if vllm is not None:
            warm_up(vllm, trial)
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
