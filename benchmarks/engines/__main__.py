"""Compares our engine with others: the same prompts, answer lengths and largest batch, in interleaved runs.

    python -m benchmarks.engines --json engines.json --size 30m --batch 8 --batch 16
    python -m benchmarks.engines --model smollm2 --dtype bfloat16 --lengths chat --threads 2 --peers vllm \\
        --only continuous --batch 16 --batch 32 --json engines_vllm.json
    python -m benchmarks.engines --device cuda [--model DIR] [--vllm-python PATH] [--json F]

Answer lengths are forced by limits, in BATON's mix or as in chats. With --device everything that a device decides is
measured: with each number of rows our engine, with and without graphs, beside `model.generate`, `generate_batch` and
vLLM if it is installed; then what the graphs and kernels, the prefix cache, prompts that join with the rows' passes and
guesses of copied text gain. What has been measured is written after each step, and as a page of tables beside the JSON.
"""

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any, get_args

import click
import torch

from benchmarks.engines.compared_engines import VllmEngine
from benchmarks.engines.device_parts import (
    COPIES_GUESSED,
    DECODING_STEPS,
    PREFIXES,
    PROMPTS_JOINING,
    copies_guessed,
    decoding_steps,
    prefixes_shared,
    prompts_joining,
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
from benchmarks.engines.interleaved_runs import GENERATE_BATCH, SHORT_NAMES, WITHOUT_GRAPHS, Trial, compare
from benchmarks.harness import HELP, Column, Json, Results, markdown_table, print_table, processor, say
from benchmarks.inputs.changed_models import MODEL_SIZES, ModelSize, enlarged_model
from benchmarks.outside_engines.engine_environments import engine_python, is_built
from benchmarks.outside_engines.server_processes import Dtype
from cli.hosting.service_access import settings_with
from cli.option_types import CommaSeparated
from cli.output import CommandFailed, WrongSetting
from inference.accelerator import device_problem, has_own_memory
from inference.local.loading.model_loading import LoadedModel

PROMPTS, FEWEST_PROMPTS = 96, 8  # prompts on a CPU; a device gets two for each row of a batch, and at least eight
ENGINES: dict[str, Column] = {
    "rows": "batch",
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
TABLES: dict[str, dict[str, Column]] = {
    "engines": ENGINES,
    "decoding steps": DECODING_STEPS,
    "prefix cache": {**PREFIXES},
    "joiners": PROMPTS_JOINING,
    "guesses": COPIES_GUESSED,
}
# The defaults of the options: ON_CPU without --device, ON_DEVICE with it.
ON_CPU: Json = {
    "sizes": ("tiny",),
    "dtypes": ("float32",),
    "batches": (8, 16, 32),
    "repeats": 3,
    "parts": ("engines", "decoding steps"),
}
ON_DEVICE: Json = {
    "sizes": ("1b",),
    "dtypes": ("bfloat16", "float16"),
    "batches": (1, 16, 32, 64),
    "repeats": 2,
    "parts": tuple(TABLES),
}


@click.command(help=__doc__)
@click.option("--device", help="cuda, cuda:1, xpu, cpu: all tables, each with defaults for a device.")
@click.option("--size", "sizes", type=click.Choice(sorted(SHAPES)), multiple=True, help="Random weights: tiny, or 1b.")
@click.option("--model", help="A fetched model's name or a directory, in place of --size.")
@click.option("--model-size", type=click.Choice(MODEL_SIZES), help="The bundled model enlarged, in place of --size.")
@click.option("--dtype", "dtypes", type=click.Choice(get_args(Dtype)), multiple=True, help="float32, or both halves.")
@click.option("--only", type=CommaSeparated(click.Choice(list(SHORT_NAMES))), default=",".join(SHORT_NAMES))
@click.option("--parts", type=click.Choice(list(TABLES)), multiple=True, help="Tables; all with --device.")
@click.option("--peers", type=click.Choice(["vllm"]), help="vLLM on a CPU; `make engines` installs it.")
@click.option("--vllm-python", type=click.Path(exists=True, path_type=Path), help="Of an environment that has vLLM.")
@click.option("--lengths", "mix", type=click.Choice(["mixed", "chat"]), default="mixed", show_default=True)
@click.option("--batch", "batches", type=int, multiple=True, help="Rows at once: 8, 16, 32, or 1, 16, 32, 64.")
@click.option("--prompts", type=int, help=f"{PROMPTS}; with --device two for each row at once.")
@click.option("--repeats", type=int, help="3; with --device 2.")
@click.option("--threads", type=int, help="CPU threads of torch; 1, with --device its own number.")
@clock_option
@click.option("--checked", default=16, show_default=True, help="Answers in float32 compared with generate alone.")
@click.option("--json", "path", type=click.Path(path_type=Path), help=f"{HELP} engines_DEVICE.json with --device.")
def main(
    device: str | None,
    model: str | None,
    model_size: ModelSize | None,
    only: list[str],
    threads: int | None,
    path: Path | None,
    **given: Any,
) -> None:
    """Compare everything, print each table as soon as it is known, and write the page."""
    if threads or device is None:
        torch.set_num_threads(threads or 1)
    of_device = {} if device is None else {"device": device, "inside": False}
    usual = ON_CPU if device is None else ON_DEVICE
    terms: Json = usual | {name: value for name, value in given.items() if value not in (None, ())} | of_device
    sizes, dtypes, parts = (terms.pop(name) for name in ("sizes", "dtypes", "parts"))
    if terms.get("peers") and terms["clock"] is not perf_counter:
        raise click.BadParameter("vLLM's processes have CPU seconds of their own: --clock wall", param_hint="--clock")
    comparison = Comparison(vllm=_vllm(device, terms.pop("peers", None), terms.pop("vllm_python", None)), **terms)
    if problem := device_problem(comparison.device):
        raise WrongSetting(f"torch {torch.__version__} cannot compute on {device} here: {problem}")
    if device is not None:
        path = path or Path(f"engines_{device.replace(':', '')}.json")
    results, name = Results.at(path), device_name(comparison.device)
    figures: Json = {"device": comparison.device, "name": name, "torch": torch.__version__, "models": []}
    figures |= {part: [] for part in parts}
    chosen: tuple[str, ...] = tuple(name for name in (model, model_size) if name)[:1] or sizes
    for size in chosen:
        figures["models"].append(size)
        with tempfile.TemporaryDirectory(prefix="magnus-engines-") as made:
            directory = _directory(size, Path(made), comparison.device, dtypes[0])
            for dtype in dtypes:
                for part, lines in comparison.measured(directory, dtype, only, parts):
                    told = [{"model": size, "dtype": dtype, **line} for line in lines]
                    figures[part] += told
                    print_table(told, TABLES[part], f"{part}: {size} in {dtype} on {name}")
                    results.write(figures)
                    if device is not None:
                        write_page(results, figures)


def device_name(device: str) -> str:
    """Return a device's product name; for a CPU also the number of threads."""
    if not has_own_memory(torch.device(device)):
        return f"{processor()}, {torch.get_num_threads()} threads"
    return str(torch.get_device_module(device).get_device_name(device))


def _vllm(device: str | None, peers: str | None, python: Path | None) -> Path | None:
    """Return the Python of vLLM's environment; None if it is not installed or, without --device, not asked for."""
    if python is not None or (device is None and not peers):
        return python
    if device in (None, "cpu") and is_built("vllm"):
        return engine_python("vllm")
    if find_spec("vllm"):
        return Path(sys.executable)
    say("vLLM is not installed here and is left out; --vllm-python names an environment that has it")
    return None


def _directory(size: str, made: Path, device: str, dtype: Dtype) -> Path:
    """Return a model's directory: made here for random weights or an enlarged model, found for a fetched one."""
    if size in SHAPES:
        random_model(size, device, getattr(torch, dtype)).save_pretrained(made / size)
        return made / size
    return enlarged_model(size, made) if size in MODEL_SIZES else Path(settings_with(model=size).model)


@dataclass(frozen=True)
class Comparison:
    """How each model is compared in each data type: the numbers of rows, the runs and the device."""

    batches: tuple[int, ...]
    repeats: int
    checked: int
    clock: Clock
    mix: str
    vllm: Path | None  # the Python of vLLM's environment
    device: str = "cpu"
    prompts: int | None = None
    inside: bool = True  # whether the time outside of the forward pass is measured, too

    def measured(
        self, directory: Path, dtype: Dtype, only: list[str], parts: tuple[str, ...]
    ) -> Iterator[tuple[str, list[Json]]]:
        """Yield the lines of each table in one data type, as soon as they are measured."""
        causal_lm = model_of(directory, self.device, dtype)
        loaded = replace(load_for_serving(causal_lm, directory.name), eos_ids=frozenset())
        names = [SHORT_NAMES[name] for name in only] + ([WITHOUT_GRAPHS] if loaded.repeats_passes else [])
        for batch in self.batches if "engines" in parts else ():
            prompts = self.prompts or (PROMPTS if self.inside else max(FEWEST_PROMPTS, 2 * batch))
            lengths = (chat_lengths if self.mix == "chat" else mixed_lengths)(prompts, 0)
            work, checked = sequences(lengths, causal_lm.config.vocab_size, 0), min(self.checked, prompts)
            checked = checked if dtype == "float32" else 0  # in other data types engines round differently
            trial = Trial(work, batch, self.repeats, checked, self.clock, self.inside)
            with self._running_vllm(directory, trial, dtype) as vllm:
                yield "engines", _compared(causal_lm, loaded, trial, names, vllm)
        others: dict[str, Callable[[], list[Json]]] = {
            "decoding steps": lambda: decoding_steps(loaded, self.batches, self.clock),
            "prefix cache": lambda: prefixes_shared(loaded),
            "joiners": lambda: prompts_joining(loaded),
            "guesses": lambda: copies_guessed(self.device, dtype, self.repeats),
        }
        for part, measure in others.items():
            if part in parts:
                yield part, measure()

    @contextmanager
    def _running_vllm(self, directory: Path, trial: Trial, dtype: Dtype) -> Iterator[VllmEngine | None]:
        if self.vllm is None:
            yield None
            return
        on_cpu, log = not has_own_memory(torch.device(self.device)), Path(tempfile.gettempdir()) / "engines.vllm.log"
        terms = (directory, dtype, trial.batch, trial.longest, torch.get_num_threads(), log, on_cpu)
        try:
            engine = VllmEngine(self.vllm, *terms)
        except CommandFailed as error:
            say(f"without vLLM: {error}")
            yield None
            return
        with engine:
            yield engine


def _compared(
    causal_lm: torch.nn.Module, loaded: LoadedModel, trial: Trial, names: list[str], vllm: VllmEngine | None
) -> list[Json]:
    try:
        return compare(causal_lm, loaded, trial, names, vllm)
    except Exception as error:  # `generate_batch` may lack a kernel for a device
        if GENERATE_BATCH not in names:
            raise
        say(f"{GENERATE_BATCH} is left out, because one engine failed with it: {type(error).__name__}: {error}")
    return compare(causal_lm, loaded, trial, [name for name in names if name != GENERATE_BATCH], vllm)


def write_page(results: Results, figures: Json) -> None:
    """Write the tables to a page beside the JSON."""
    if results.file is None:
        return
    origin = results.origin
    lines = [f"# The engines on {figures['name']}", "", f"    {origin['command']}", ""]
    lines += [
        f"The models {', '.join(figures['models'])}, torch {figures['torch']}, commit {origin['commit']}, "
        f"{origin['date']} ([JSON]({results.file.name})). Medians of interleaved runs; "
        "`×` is the median ratio of adjacent runs."
    ]
    for part in TABLES:
        if figures.get(part):
            columns = {"data type": "dtype", **TABLES[part]}
            lines += ["", f"## {part.capitalize()}", "", *markdown_table(figures[part], columns)]
    results.file.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
