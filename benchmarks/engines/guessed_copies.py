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
from collections.abc import Iterator
from collections.abc import Sequence as Several
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter

import click
import torch

from benchmarks.engines.compared_engines import VllmEngine
from benchmarks.engines.engine_options import Clock, clock_option, threads_option
from benchmarks.engines.interleaved_runs import timed
from benchmarks.generated_answers import choose_instructions
from benchmarks.harness import Column, Json, Results, json_option, print_table
from benchmarks.outside_engines.engine_environments import engine_python
from benchmarks.outside_engines.server_processes import Dtype
from cli.option_types import CommaSeparated
from cli.service_access import settings_with
from inference.local.engine import Engine
from inference.local.loading.model_loading import LoadedModel, load_model
from inference.local.tokens.guessed_tokens import Guessing
from inference.prompt_format import PromptFormat, load_prompt_format
from inference.sequences import Sequence
from inference.toy.toy_applications import toy_requests

KV_BUDGET_BYTES = 2**31  # more than any of these batches takes
READ = 4  # instructions that are read for each one that is used: applications have different shares of the files
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
@click.option("--guess", default=16, show_default=True, help="MAGNUS_GUESS_TOKENS.")
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
                sequences = [Sequence(str(number), prompt, limit) for number, prompt in enumerate(of_size)]
                line = compared(loaded, sequences, rows, guess, repeats, clock, beside)
                lines.append({"application": application, "rows": rows, "prompts": len(sequences), **line})
                results.write(lines)
    columns = COLUMNS | PEER_COLUMNS if peers else COLUMNS
    print_table(lines, columns, f"{directory.name}, {dtype}, {torch.get_num_threads()} threads, {clock.__name__}")


@contextmanager
def vllm_engines(
    model: Path, dtype: Dtype, rows: int, longest: int, guess: int
) -> Iterator[tuple[VllmEngine, VllmEngine] | tuple[()]]:
    """Start vLLM twice, the second one with guesses of at most `guess` tokens; none if that is 0."""
    if not guess:
        yield ()
        return
    with tempfile.TemporaryDirectory(prefix="magnus-guesses-") as made, ExitStack() as stack:
        terms = engine_python("vllm"), model, dtype, rows, longest, torch.get_num_threads(), Path(made) / "vllm.log"
        plain = stack.enter_context(VllmEngine(*terms))
        yield plain, stack.enter_context(VllmEngine(*terms, guess=guess))


def encoded_prompts(data: Path | None, prompt_format: PromptFormat, each: int) -> dict[str, list[tuple[int, ...]]]:
    """Encode prompts of every application: of the papers' tasks, or of the toy applications without data."""
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
    sequences: Several[Sequence],
    rows: int,
    guess: int,
    repeats: int,
    clock: Clock,
    beside: Several[VllmEngine] = (),
) -> Json:
    """Serve the sequences with and without guesses in turns, after one turn that is not measured."""
    seconds: tuple[list[float], list[float]] = [], []
    of_peers: list[list[float]] = [[] for _ in beside]
    engines = [Engine(loaded, KV_BUDGET_BYTES, guessing=guessing) for guessing in (None, Guessing(guess))]
    for turn in range(repeats + 1):
        given = sequences if turn else sequences[:rows]
        served = []
        for engine, of_engine in zip(engines, seconds, strict=True):
            began = clock()
            served.append(_served(engine, given, rows))
            of_engine.append(clock() - began)
        as_long = [replace(one, limit=len(served[0][0][one.id])) for one in given]
        for peer, of_peer in zip(beside, of_peers, strict=True):
            of_peer.append(timed(partial(peer.serve, as_long, rows), clock)[1])
    (plain_answers, *_), (answers, guesses, right) = served
    tokens = sum(map(len, plain_answers.values()))
    plain_s, guessed_s = (one[1:] for one in seconds)
    times = [plain / guessed for plain, guessed in zip(plain_s, guessed_s, strict=True)]
    line = {
        "tokens": tokens,
        "tokens_per_s": tokens / median(plain_s),
        "guessed_tokens_per_s": sum(map(len, answers.values())) / median(guessed_s),
        "times": median(times),
        "times_of_each": times,
        "seconds_of_each": (plain_s, guessed_s),
        "guesses_a_token": guesses / tokens,
        "right_share": right / guesses if guesses else None,
        "same": answers == plain_answers,
    }
    return line | _beside(tokens, guessed_s, [one[1:] for one in of_peers])


def _beside(tokens: int, guessed_s: list[float], of_peers: list[list[float]]) -> Json:
    """Return the tokens a second of vLLM and of its n-grams, and how many times as many we had with guesses."""
    line: Json = {}
    for name, peer_s in zip(PEERS, of_peers, strict=False):
        line[f"{name}_tokens_per_s"] = tokens / median(peer_s)
        line[f"times_{name}"] = median(peer / ours for peer, ours in zip(peer_s, guessed_s, strict=True))
        line[f"{name}_seconds_of_each"] = peer_s
    return line


def _served(engine: Engine, sequences: Several[Sequence], rows: int) -> tuple[dict[str, tuple[int, ...]], int, int]:
    """Serve the sequences with at most `rows` at once; returns their answers, and all guesses and right ones."""
    waiting, answers, guesses, right = deque(sequences), dict[str, tuple[int, ...]](), 0, 0
    while waiting or engine.rows:
        engine.insert([waiting.popleft() for _ in range(min(rows - len(engine.rows), len(waiting)))])
        answers |= {row.id: row.generated_ids for row in engine.step()}
        if not engine.rows:  # the next row begins new figures
            guesses, right = guesses + engine.figures.guessed_tokens, right + engine.figures.right_guesses
    return answers, guesses, right


if __name__ == "__main__":
    main()
