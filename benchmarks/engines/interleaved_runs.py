"""Measures engines that serve the same prompts in interleaved runs, and their time outside of the forward pass."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Protocol

import torch

from benchmarks.engines.bandwidth_floor import synchronized
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
from benchmarks.experiment import Experiment, of_system, times
from benchmarks.harness import Json
from inference.engine_requests import DecodingRequest
from inference.local.loading.model_loading import LoadedModel

GENERATE, GENERATE_BATCH = "model.generate (Benchmark)", "generate_batch"
RUN_TO_COMPLETION, CONTINUOUS = "ours, run-to-completion", "ours, continuous (BATON-PD)"
WITHOUT_GRAPHS = "ours, without graphs"
VLLM = "vLLM"
SHORT_NAMES = {
    "generate": GENERATE,
    "completion": RUN_TO_COMPLETION,
    "continuous": CONTINUOUS,
    "generate_batch": GENERATE_BATCH,
}


class ComparedEngine(Protocol):
    """An engine that serves all sequences with at most `batch` rows at once."""

    def serve(self, sequences: Sequence[DecodingRequest], batch: int) -> EngineRun:
        """Serve all sequences."""
        ...


@dataclass(slots=True)
class ForwardTime:
    """The seconds spent in the model's forward pass."""

    seconds: float = 0.0


@contextmanager
def forward_time(models: Sequence[torch.nn.Module], clock: Callable[[], float]) -> Iterator[ForwardTime]:
    """Time each forward pass to the end of its kernels. This slows the run, whose speed is therefore not compared."""
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


@dataclass(frozen=True, slots=True)
class Trial:
    """The sequences that every engine serves, and how they are timed."""

    sequences: list[DecodingRequest]
    batch: int
    repeats: int
    checked: int  # the number of answers that are compared with those of `model.generate` on a single prompt
    clock: Callable[[], float]
    inside: bool = True  # whether the time outside of the forward pass is measured, too

    @property
    def longest(self) -> int:
        """Return the tokens of the longest prompt with its answer."""
        return max(len(row.prompt_ids) + row.limit for row in self.sequences)

    def served(self, engine: ComparedEngine, sequences: Sequence[DecodingRequest]) -> Json:
        """Let an engine serve these sequences; returns its run and the seconds."""
        now = synchronized(self.clock)
        began = now()
        run = engine.serve(sequences, self.batch)
        return {"run": run, "seconds": now() - began}

    def overhead_share(self, engine: ComparedEngine, models: Sequence[torch.nn.Module]) -> float:
        """Return the share of an engine's time outside of the forward pass."""
        with forward_time(models, self.clock) as forward:
            seconds: float = self.served(engine, self.sequences)["seconds"]
        return 1 - forward.seconds / seconds


def compare(
    model: torch.nn.Module, loaded: LoadedModel, trial: Trial, names: Sequence[str], vllm: VllmEngine | None = None
) -> list[Json]:
    """Measure the named engines, and vLLM if it is given; returns a row for each, with medians of interleaved runs.

    `model` is loaded by transformers, `loaded` is the same model loaded by our engine.
    """
    plain, models = replace(loaded, model=model), list({id(each): each for each in (model, loaded.decoder)}.values())
    budget_bytes = kv_budget_bytes(loaded, trial.batch, trial.longest)
    makers: dict[str, Callable[[], ComparedEngine]] = {
        GENERATE: lambda: Generate(plain),
        RUN_TO_COMPLETION: lambda: RunToCompletion(loaded, budget_bytes),
        CONTINUOUS: lambda: Continuous(loaded, budget_bytes),
        WITHOUT_GRAPHS: lambda: WithoutGraphs(loaded, budget_bytes),
        GENERATE_BATCH: lambda: GenerateBatch(plain, trial.batch, trial.longest),
    }
    engines = {name: make() for name, make in makers.items() if name in names}
    try:
        expected = Generate(plain).serve(trial.sequences[: trial.checked], 1).answers if trial.checked else {}
        outside: dict[str, float] = {}
        beside: dict[str, ComparedEngine] = {} if vllm is None else {VLLM: vllm}
        for name, engine in (engines | beside).items():
            engine.serve(trial.sequences[: 2 * trial.batch], trial.batch)  # warms up: allocates memory, chooses kernels
            if trial.inside and name != VLLM:
                outside[name] = trial.overhead_share(engine, models)
        experiment = Experiment({"": trial.sequences}, engines | beside, trial.served)
        rows = list(experiment.runs(trial.repeats))
    finally:
        if isinstance(paged := engines.get(GENERATE_BATCH), GenerateBatch):
            paged.close()
    return [
        _line(trial, name, rows, expected) | {"step_overhead_share": outside.get(name)} for name in experiment.systems
    ]


def _line(trial: Trial, name: str, rows: list[Json], expected: dict[str, tuple[int, ...]]) -> Json:
    of_each = of_system(rows, name, "seconds")
    runs: list[EngineRun] = [row["run"] for row in rows if row["system"] == name]
    first, seconds = runs[0], median(of_each)
    return {
        "engine": name,
        "batch": trial.batch,
        "prompts": len(trial.sequences),
        "seconds": seconds,
        "valid_tokens_per_s": sum(row.limit for row in trial.sequences) / seconds,
        "total_tokens_per_s": first.computed_tokens / seconds,
        "idle_row_share": first.idle_rows / first.possible_rows if first.possible_rows else None,
        "peak_kv_bytes": first.peak_kv_bytes,
        "identical": all(expected.items() <= run.answers.items() for run in runs) if expected else None,
        "times_generate": times(rows, name, GENERATE),
        "times_generate_batch": times(rows, name, GENERATE_BATCH),
        "times_vllm": times(rows, name, VLLM),
        "seconds_of_each": of_each,
    }
