"""Measures what guessing of copied text gains: tokens a second with and without it, by application and number of rows.

    python -m benchmarks.engines.guessed_copies --model smollm2 --data DIR --json F [--guess 16] [--clock cpu]
    python -m benchmarks.engines.guessed_copies --model inference/bundled --json F
    python -m benchmarks.engines.guessed_copies --model smollm2 --data DIR --dtype bfloat16 --peers vllm --json F

Greedy answers of a real model to the papers' tasks in DIR/requests/*.jsonl, or of the bundled model to the toy
applications. Rows join as others end. Both ways take turns, each with an engine of its own, and must give the same
answers in float32. With --peers vllm, vLLM without and with its n-gram speculation gives answers as long as ours.
"""

import tempfile
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter

import click
import torch

from benchmarks.engines.bandwidth_floor import seconds_of
from benchmarks.engines.compared_engines import VllmEngine
from benchmarks.engines.engine_options import Clock, clock_option, threads_option
from benchmarks.experiment import Experiment, of_system, times
from benchmarks.generated_answers import choose_instructions
from benchmarks.harness import Column, Json, Results, json_option, print_table
from benchmarks.outside_engines.engine_environments import engine_python
from benchmarks.outside_engines.server_processes import Dtype
from cli.hosting.service_access import settings_with
from cli.option_types import CommaSeparated
from inference.engine_requests import DecodingRequest
from inference.local.engine import Engine
from inference.local.engine_options import EngineOptions
from inference.local.guessed_tokens import Guessing
from inference.local.loading.model_loading import LoadedModel, load_model
from inference.prompts.prompt_format import PromptFormat, load_prompt_format
from inference.toy.toy_applications import toy_requests

KV_BUDGET_BYTES = 2**31  # more than any of these batches takes
READ = 4  # this many times the used instructions are read, because applications have different shares of the files
COLUMNS: dict[str, Column] = {
    "application": "application",
    "rows": "rows",
    "tokens/s": "tokens_per_s:.1f",
    "guessed": "guessed_tokens_per_s:.1f",
    "×": "times:.2f",
    "of each": lambda line: " ".join(f"{one:.2f}" for one in line["times_of_each"]),
    "guesses a token": "guesses_a_token:.2f",
    "right": "right_share:.0%",
    "same answers": "same",
}
PEERS = "vllm", "vllm_guessed"
PEER_COLUMNS: dict[str, Column] = {
    "vLLM": "vllm_tokens_per_s:.1f",
    "its n-grams": "vllm_guessed_tokens_per_s:.1f",
    "guessed × vLLM": "times_vllm:.2f",
    "× its n-grams": "times_vllm_guessed:.2f",
}


@click.command(help=__doc__)
@click.option("--model", required=True, help="A fetched model's name or a directory.")
@click.option("--data", type=click.Path(exists=True, path_type=Path), help="Directory of the papers' tasks.")
@click.option("--applications", type=CommaSeparated(str), default="", help="Their names; all if empty.")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), default="float32", show_default=True)
@click.option("--rows", "sizes", type=CommaSeparated(int), default="1,8,32", show_default=True)
@click.option("--requests", default=2, show_default=True, help="Of an application, for each row at once.")
@click.option("--fewest", default=6, show_default=True, help="Of an application, for few rows.")
@click.option("--limit", default=128, show_default=True, help="Most tokens of an answer.")
@click.option("--guess", default=16, show_default=True, help="The parameter guess_tokens.")
@click.option("--peers", type=click.Choice(["vllm"]), help="vLLM beside ours; `make engines` installs it.")
@click.option("--peer-guess", default=5, show_default=True, help="Most tokens that vLLM guesses at once.")
@click.option("--repeats", default=3, show_default=True)
@threads_option
@clock_option
@json_option
def main(
    model: str,
    data: Path | None,
    applications: list[str],
    dtype: Dtype,
    sizes: list[int],
    requests: int,
    fewest: int,
    limit: int,
    guess: int,
    peers: str | None,
    peer_guess: int,
    repeats: int,
    clock: Clock,
    results: Results,
) -> None:
    """Print what guessing gains in each application with each number of rows."""
    if peers and clock is not perf_counter:
        raise click.BadParameter("vLLM's processes have CPU seconds of their own: --clock wall", param_hint="--clock")
    directory = Path(settings_with(model=model).model)
    loaded, prompt_format = load_model(str(directory), dtype=dtype), load_prompt_format(str(directory))
    prompts = encoded_prompts(data, prompt_format, READ * max(fewest, requests * max(sizes)))
    longest = limit + max(len(prompt) for of_application in prompts.values() for prompt in of_application)
    lines: list[Json] = []
    for rows in sizes:
        with vllm_engines(directory, dtype, rows, longest, peer_guess if peers else 0) as beside:
            for application in applications or sorted(prompts):
                of_size = prompts[application][: max(fewest, requests * rows)]
                sequences = [DecodingRequest(str(number), prompt, limit) for number, prompt in enumerate(of_size)]
                line = compared(loaded, sequences, rows, guess, repeats, clock, beside)
                lines.append({"application": application, "rows": rows, "prompts": len(sequences), **line})
                results.write(lines)
    columns = COLUMNS | PEER_COLUMNS if peers else COLUMNS
    print_table(lines, columns, f"{directory.name}, {dtype}, {torch.get_num_threads()} threads, {clock.__name__}")


@contextmanager
def vllm_engines(
    model: Path, dtype: Dtype, rows: int, longest: int, guess: int
) -> Iterator[tuple[VllmEngine, VllmEngine] | tuple[()]]:
    """Start vLLM without guesses, and again with guesses of at most `guess` tokens; start none if `guess` is 0."""
    if not guess:
        yield ()
        return
    with tempfile.TemporaryDirectory(prefix="magnus-guesses-") as made, ExitStack() as stack:
        terms = engine_python("vllm"), model, dtype, rows, longest, torch.get_num_threads(), Path(made) / "vllm.log"
        plain = stack.enter_context(VllmEngine(*terms))
        yield plain, stack.enter_context(VllmEngine(*terms, guess=guess))


def encoded_prompts(data: Path | None, prompt_format: PromptFormat, each: int) -> dict[str, list[tuple[int, ...]]]:
    """Encode prompts of the papers' tasks in `data`, or of the toy applications without data, by application."""
    found: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    if data is None:
        asked = [(one.application, one.instruction, one.input) for one in toy_requests(6 * each, seed=5)]
    else:
        asked = choose_instructions(data, 6 * each, prompt_format.count, papers_only=True)
    for application, instruction, text in asked:
        found[application].append(tuple(prompt_format.encode(instruction, text)))
    return found


def compared(
    loaded: LoadedModel,
    sequences: Sequence[DecodingRequest],
    rows: int,
    guess: int,
    repeats: int,
    clock: Clock,
    beside: Sequence[VllmEngine] = (),
) -> Json:
    """Serve the sequences with and without guesses in turns, after a turn of `rows` sequences that is not measured."""
    ours = {
        name: Engine(loaded, KV_BUDGET_BYTES, EngineOptions(guessing=guessing))
        for name, guessing in (("plain", None), ("guessed", Guessing(guess)))
    }
    lengths: dict[str, int] = {}  # tokens of our answers, by id; vLLM's answers get the same lengths

    def figures(engine: Engine | VllmEngine, given: Sequence[DecodingRequest]) -> Json:
        if isinstance(engine, VllmEngine):
            as_long = [replace(one, limit=lengths[one.id]) for one in given]
            return {"seconds": seconds_of(partial(engine.serve, as_long, rows), 1, clock)[0]}
        began = clock()
        answers, guesses, right = _served(engine, given, rows)
        lengths.update({name: len(ids) for name, ids in answers.items()})
        return {"seconds": clock() - began, "answers": answers, "guesses": guesses, "right": right}

    systems: dict[str, Engine | VllmEngine] = {**ours, **dict(zip(PEERS, beside, strict=False))}
    list(Experiment({"": sequences[:rows]}, systems, figures).runs())
    runs = list(Experiment({"": sequences}, systems, figures).runs(repeats))
    last = {run["system"]: run for run in runs}
    tokens, guesses = sum(map(len, last["plain"]["answers"].values())), last["guessed"]["guesses"]
    plain_s, guessed_s = (of_system(runs, name, "seconds") for name in ours)
    line = {
        "tokens": tokens,
        "tokens_per_s": tokens / median(plain_s),
        "guessed_tokens_per_s": sum(map(len, last["guessed"]["answers"].values())) / median(guessed_s),
        "times": times(runs, "guessed", "plain"),
        "times_of_each": [plain / guessed for plain, guessed in zip(plain_s, guessed_s, strict=True)],
        "seconds_of_each": (plain_s, guessed_s),
        "guesses_a_token": guesses / tokens,
        "right_share": last["guessed"]["right"] / guesses if guesses else None,
        "same": last["guessed"]["answers"] == last["plain"]["answers"],
    }
    for name in PEERS[: len(beside)]:
        line[f"{name}_tokens_per_s"] = tokens / median(of_system(runs, name, "seconds"))
        line[f"times_{name}"] = times(runs, "guessed", name)
        line[f"{name}_seconds_of_each"] = of_system(runs, name, "seconds")
    return line


def _served(
    engine: Engine, sequences: Sequence[DecodingRequest], rows: int
) -> tuple[dict[str, tuple[int, ...]], int, int]:
    """Serve the sequences with at most `rows` at once; returns answers, number of guesses, number of right guesses."""
    waiting, answers, guesses, right = deque(sequences), dict[str, tuple[int, ...]](), 0, 0
    while waiting or engine.rows:
        engine.insert([waiting.popleft() for _ in range(min(rows - len(engine.rows), len(waiting)))])
        answers |= {row.id: row.generated_ids for row in engine.step()}
        if not engine.rows:  # the engine's figures start anew with the next row
            guesses, right = guesses + engine.figures.guessed_tokens, right + engine.figures.right_guesses
    return answers, guesses, right


if __name__ == "__main__":
    main()
