"""Compares on one device, mostly a GPU, what that device decides, and writes the figures with a page of tables.

    python -m benchmarks.engines --device cuda [--model DIR] [--vllm-python PATH] [--json F]
    python -m benchmarks.engines --device cpu --size tiny --dtype float32 --batch 1 --batch 8 --repeats 1

In each data type and with each number of rows: our engine, with and without graphs where the device has some, beside
`model.generate`, `generate_batch` and vLLM, if it is installed. Then what our engine's parts gain: the device's graphs
and kernels, the prefix cache, prompts that join with the rows' passes, and guesses of copied text. Answers have BATON's
mix of lengths. What has been measured is written after each step, so that a run that ends early has figures, too.
"""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import chain, islice
from pathlib import Path
from time import perf_counter
from typing import get_args

import click
import torch

from benchmarks.engines import guessed_copies, join_gaps, shared_prefixes
from benchmarks.engines.bandwidth_floor import bandwidth, floor_s, step_s
from benchmarks.engines.compared_engines import VllmEngine, without
from benchmarks.engines.engine_workload import (
    SHAPES,
    load_for_serving,
    mixed_lengths,
    model_of,
    random_model,
    sequences,
)
from benchmarks.engines.interleaved_runs import (
    CONTINUOUS,
    GENERATE,
    GENERATE_BATCH,
    RUN_TO_COMPLETION,
    WITHOUT_GRAPHS,
    Trial,
    compare,
)
from benchmarks.harness import HELP, Column, Json, Results, markdown_table, print_table, processor, say
from benchmarks.outside_engines.engine_environments import engine_python, is_built
from benchmarks.outside_engines.server_processes import Dtype
from cli.output import CommandFailed, WrongSetting
from cli.service_access import settings_with
from inference.accelerator import device_problem, has_own_memory
from inference.local.loading.model_loading import LoadedModel, load_model
from inference.prompt_format import load_prompt_format
from inference.sequences import Sequence
from settings import BUNDLED_MODEL

DTYPES: tuple[Dtype, ...] = ("bfloat16", "float16")
BATCHES = (1, 16, 32, 64)
FEWEST_PROMPTS = 8  # with one row
CHECKED = 8  # answers that are compared with generate in float32; others round differently
# Requests of one instruction: how many, at once, and the tokens of the instruction, of the inputs and of the answers.
SHARING = (64, 16, 512, 48, 48)
# Rows that join running ones: the running rows, the tokens of each joiner's prompt and answer, joiners, joins.
JOINING = (16, (512, 4), 4, 3)
BOUNDS = {"by costs": 0, "32": 32, "all": 2**20}  # tokens of prompts between two tokens of a row; 0: unset
COPYING_ROWS = (1, 8)
COPIES, COPY_TOKENS, GUESSES = 24, 96, 16  # requests whose answers copy their inputs, tokens of each, most guesses
TABLES: dict[str, dict[str, Column]] = {
    "engines": {
        "data type": "dtype",
        "rows": "batch",
        "engine": "engine",
        "valid tokens/s": "valid_tokens_per_s:.0f",
        "× generate": "times_generate:.2f",
        "× generate_batch": "times_generate_batch:.2f",
        "× vLLM": "times_vllm:.2f",
        "identical": "identical",
    },
    "decoding steps": {
        "data type": "dtype",
        "rows": "rows",
        "step ms": "step_ms:.2f",
        "without graphs ms": "without_graphs_ms:.2f",
        "without kernels ms": "without_kernels_ms:.2f",
        "reading ms": "reading_ms:.2f",
    },
    "prefix cache": {"data type": "dtype", **shared_prefixes.COLUMNS},
    "joiners": {"data type": "dtype", **join_gaps.COLUMNS},
    "guesses": {
        "data type": "dtype",
        **{name: column for name, column in guessed_copies.COLUMNS.items() if name != "application"},
    },
}


@click.command(help=__doc__)
@click.option("--device", required=True, help="cuda, cuda:1, xpu, cpu.")
@click.option("--model", help="A fetched model's name or a directory, in place of --size.")
@click.option("--size", type=click.Choice(sorted(SHAPES)), default="1b", show_default=True, help="Random weights.")
@click.option("--dtype", "dtypes", type=click.Choice(get_args(Dtype)), multiple=True, default=DTYPES, show_default=True)
@click.option("--batch", "batches", type=int, multiple=True, default=BATCHES, show_default=True, help="Rows at once.")
@click.option("--requests", default=2, show_default=True, help="For each row at once.")
@click.option("--repeats", default=2, show_default=True)
@click.option("--vllm-python", type=click.Path(exists=True, path_type=Path), help="Of an environment that has vLLM.")
@click.option("--json", "path", type=click.Path(path_type=Path), help=f"{HELP} engines_DEVICE.json if unset.")
def main(
    device: str,
    model: str | None,
    size: str,
    dtypes: tuple[Dtype, ...],
    batches: tuple[int, ...],
    requests: int,
    repeats: int,
    vllm_python: Path | None,
    path: Path | None,
) -> None:
    """Compare everything, print each table as soon as it is known, and write the page."""
    if problem := device_problem(device):
        raise WrongSetting(f"torch {torch.__version__} cannot compute on {device} here: {problem}")
    path = path or Path(f"engines_{device.replace(':', '')}.json")
    results, vllm = Results.at(path), vllm_python or _vllm_here(device)
    if vllm is None:
        say("vLLM is not installed here and is left out; --vllm-python names an environment that has it")
    figures: Json = {"device": device, "name": device_name(device), "torch": torch.__version__, "model": model or size}
    figures |= {table: [] for table in TABLES}
    with tempfile.TemporaryDirectory(prefix="magnus-engines-") as made:
        directory = Path(settings_with(model=model).model) if model else Path(made) / size
        if not model:
            random_model(size, device, getattr(torch, dtypes[0])).save_pretrained(directory)
        comparison = Comparison(directory, device, batches, requests, repeats, vllm, path.with_suffix(".vllm.log"))
        for dtype in dtypes:
            for table, lines in comparison.measured(dtype):
                told = [{"dtype": dtype, **line} for line in lines]
                figures[table] += told
                print_table(told, TABLES[table], f"{table}: {model or size} in {dtype} on {figures['name']}")
                results.write(figures)
                write_page(results, figures)


def device_name(device: str) -> str:
    """Return the name that the maker of a device gave it."""
    if not has_own_memory(torch.device(device)):
        return f"{processor()}, {torch.get_num_threads()} threads"
    return str(torch.get_device_module(device).get_device_name(device))


def _vllm_here(device: str) -> Path | None:
    if device == "cpu" and is_built("vllm"):
        return engine_python("vllm")
    return Path(sys.executable) if find_spec("vllm") else None


@dataclass(frozen=True)
class Comparison:
    """What is compared in each data type."""

    directory: Path  # of the model
    device: str
    batches: tuple[int, ...]
    requests: int
    repeats: int
    vllm: Path | None  # the Python of its environment
    vllm_log: Path

    def measured(self, dtype: Dtype) -> Iterator[tuple[str, list[Json]]]:
        """Yield the lines of each table in one data type, as soon as they are measured."""
        causal_lm = model_of(self.directory, self.device, dtype)
        loaded = replace(load_for_serving(causal_lm, self.directory.name), eos_ids=frozenset())
        for batch in self.batches:
            lengths = mixed_lengths(max(FEWEST_PROMPTS, self.requests * batch), 0)
            work, checked = sequences(lengths, causal_lm.config.vocab_size, 0), CHECKED if dtype == "float32" else 0
            trial = Trial(work, batch, self.repeats, checked, perf_counter, inside=False)
            with self._vllm(trial, dtype) as vllm:
                yield "engines", _compared(causal_lm, loaded, trial, vllm)
        yield "decoding steps", decoding_steps(loaded, self.batches)
        yield "prefix cache", prefixes_shared(loaded)
        yield "joiners", prompts_joining(loaded)
        yield "guesses", copies_guessed(self.device, dtype, self.repeats)

    @contextmanager
    def _vllm(self, trial: Trial, dtype: Dtype) -> Iterator[VllmEngine | None]:
        if self.vllm is None:
            yield None
            return
        on_cpu, threads = not has_own_memory(torch.device(self.device)), torch.get_num_threads()
        terms = (self.directory, dtype, trial.batch, trial.longest, threads, self.vllm_log, on_cpu)
        try:
            engine = VllmEngine(self.vllm, *terms)
        except CommandFailed as error:
            say(f"without vLLM: {error}")
            yield None
            return
        with engine:
            yield engine


def _compared(causal_lm: torch.nn.Module, loaded: LoadedModel, trial: Trial, vllm: VllmEngine | None) -> list[Json]:
    names = [GENERATE, RUN_TO_COMPLETION, CONTINUOUS, *([WITHOUT_GRAPHS] if loaded.repeats_passes else [])]
    try:
        return compare(causal_lm, loaded, trial, [*names, GENERATE_BATCH], vllm)
    except Exception as error:  # `generate_batch` may lack a kernel for a device
        say(f"{GENERATE_BATCH} is left out, because one engine failed with it: {type(error).__name__}: {error}")
    return compare(causal_lm, loaded, trial, names, vllm)


def decoding_steps(loaded: LoadedModel, batches: tuple[int, ...]) -> list[Json]:
    """Measure steps with and without the device's graphs and kernels, and what reading the memory would take."""
    bytes_per_s, lines = bandwidth(loaded.device, perf_counter), list[Json]()
    for rows in batches:
        line: Json = {"rows": rows, "step_ms": 1000 * step_s(loaded, rows, perf_counter)}
        if loaded.repeats_passes:
            with without(loaded, "graphs"):
                line["without_graphs_ms"] = 1000 * step_s(loaded, rows, perf_counter)
        if loaded.by_pages:
            with without(loaded, "graphs"), without(loaded, "kernels"):
                line["without_kernels_ms"] = 1000 * step_s(loaded, rows, perf_counter)
        lines.append(line | {"reading_ms": 1000 * floor_s(loaded, rows, bytes_per_s)})
    return lines


def prefixes_shared(loaded: LoadedModel) -> list[Json]:
    """Serve requests of one instruction without the prefix cache and with it."""
    count, rows, shared, own, answer = SHARING
    vocabulary = loaded.model.config.get_text_config().vocab_size
    (instruction,) = sequences([(shared, 1)], vocabulary, seed=0)
    asked = [
        replace(one, prompt_ids=(*instruction.prompt_ids, *one.prompt_ids))
        for one in sequences([(own, answer)] * count, vocabulary, seed=1)
    ]
    shared_prefixes.served(loaded, asked[:rows], rows, prefix_cache=False, clock=perf_counter)  # warms up
    lines, answers = [], []
    for prefix_cache in (False, True):
        found, served = shared_prefixes.served(loaded, asked, rows, prefix_cache, perf_counter)
        lines.append({"cache": "on" if prefix_cache else "off", **found})
        answers.append([served[one.id].generated_ids for one in asked])
    lines[-1]["equal"] = sum(one == other for one, other in zip(*answers, strict=True)) / len(asked)
    return lines


def prompts_joining(loaded: LoadedModel) -> list[Json]:
    """Let rows join running ones, with each bound of what is prefilled between two tokens of a row."""
    rows, lengths, joiners, joins = JOINING
    return [
        {"prefill_tokens": name} | join_gaps.gaps(loaded, rows, [lengths] * joiners, joins, bound, perf_counter)
        for name, bound in BOUNDS.items()
    ]


def copies_guessed(device: str, dtype: Dtype, repeats: int) -> list[Json]:
    """Serve the toy applications, whose answers copy their inputs, without guesses and with them."""
    loaded = load_model(str(BUNDLED_MODEL), device, dtype)
    prompts = guessed_copies.encoded_prompts(None, load_prompt_format(str(BUNDLED_MODEL)), COPIES)
    asked = [
        Sequence(str(number), prompt, COPY_TOKENS)
        for number, prompt in enumerate(islice(chain(*zip(*prompts.values(), strict=False)), COPIES))  # of each in turn
    ]
    return [
        {"rows": rows, **guessed_copies.compared(loaded, asked, rows, GUESSES, repeats, perf_counter)}
        for rows in COPYING_ROWS
    ]


def write_page(results: Results, figures: Json) -> None:
    """Write the tables to a page beside the JSON."""
    if results.file is None:
        return
    lines = [f"# The engines on {figures['name']}", ""]
    lines += [f"    {results.origin['command']}", ""]
    lines += [
        f"The model {figures['model']}, torch {figures['torch']}, commit {results.origin['commit']}, "
        f"{results.origin['date']} ([JSON]({results.file.name})). Medians of interleaved runs; "
        "`×` is the median ratio of adjacent runs."
    ]
    for table, columns in TABLES.items():
        if figures[table]:
            lines += ["", f"## {table.capitalize()}", "", *markdown_table(figures[table], columns)]
    results.file.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
