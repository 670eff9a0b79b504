"""A real model's greedy answers in bfloat16, generated once by our engine and kept in a JSON file.

`python -m benchmarks.generated_answers --model DIR --data DIR --answers F` generates those to the papers' tasks, from
which `benchmarks.live --workload tasks` draws; started again, it goes on where it was stopped.
"""

import json
import os
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from cli.demo.demo_workload import real_requests
from inference.engine_requests import DecodingRequest, FinishedRow
from inference.local.engine import Engine
from inference.local.loading.model_loading import load_model
from inference.prompts.prompt_format import PromptFormat, load_prompt_format
from learning.features.length_predictor import Outcome, Prompt

LIMIT = 256  # the most tokens of an answer
ANSWERS = 800  # the most answers to mixed instructions; the repository has 218 instructions, more come from data sets
# These do not count as papers' tasks. SmolLM2 ended none of 7 translations into Chinese within 512 tokens, but 43
# of 63 answers to the papers' other tasks, few of them after 256 tokens.
NOT_ENDED = ("chat", "mt_en_zh")
LONGEST_INPUT = 384  # tokens; nine of ten inputs of every task are shorter, except in Python's code comments
# Rows decoded together. More rows gain little on two cores, and prompts would wait longer for their prefill; not tuned.
ROWS = 64
SAVE_EVERY = 32  # the file is saved after so many answers: a killed run loses about 20 s of work
KV_BUDGET_BYTES = 2**34  # any value above the rows' need works: memory is not measured

DIRECTORY = click.Path(exists=True, path_type=Path)
Command = TypeVar("Command", bound=Callable[..., Any])
Instruction = tuple[str, str, str]  # application, instruction, input


def answer_options(command: Command) -> Command:
    """Give a command the options of `load_answers`: `--model`, `--answers` (as `cache`) and `--data`."""
    for option in (
        click.option("--data", type=DIRECTORY, help="Directory of data sets in requests/*.jsonl."),
        click.option("--answers", "cache", type=click.Path(path_type=Path), required=True, help="File, outside git."),
        click.option("--model", required=True, help="Directory of a fetched model, such as .magnus/models/smollm2."),
    ):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class RealAnswer:
    """An instruction and what the model answered; `cut` means that the answer reached the limit."""

    application: str
    instruction: str
    input: str
    input_tokens: int
    prompt_tokens: int
    generated_tokens: int
    cut: bool
    text: str

    def outcome(self, at: float) -> Outcome:
        """Return the answer as an outcome in the service's log."""
        prompt = Prompt(
            self.application, self.instruction, self.input, self.input_tokens, self.prompt_tokens, limit_tokens=LIMIT
        )
        return Outcome(prompt, self.generated_tokens, censored=self.cut, at=at)


def choose_instructions(
    data: Path | None, answers: int, count: Callable[[str], int], papers_only: bool = False
) -> list[Instruction]:
    """Choose the repository's own instructions and an equal number of each data set's, in random order.

    With `papers_only` the repository's instructions and the tasks NOT_ENDED, chats among them, are left out.
    """
    rng = random.Random(0)
    chosen = {} if papers_only else {(r.instruction, r.input): r.application for r in real_requests()}
    files = sorted((data / "requests").glob("*.jsonl")) if data else []
    files = [file for file in files if not (papers_only and file.name.startswith(NOT_ENDED))]
    for position, file in enumerate(files):
        share = (answers - len(chosen)) // (len(files) - position)
        lines = file.read_text(encoding="utf-8").splitlines()
        rng.shuffle(lines)
        of_file = 0
        for row in map(json.loads, lines):
            key = (row["instruction"], row["input"])
            if of_file < share and key not in chosen and count(row["input"]) <= LONGEST_INPUT:
                chosen[key] = row["application"]
                of_file += 1
    instructions = [(application, *texts) for texts, application in chosen.items()]
    rng.shuffle(instructions)
    return instructions[:answers]


def load_answers(
    cache: Path,
    model: str,
    data: Path | None,
    answers: int,
    report: Callable[[str], None],
    cached_only: bool = False,
    papers_only: bool = False,
) -> list[RealAnswer]:
    """Read the answers from `cache`; missing ones are generated, greedily and in bfloat16, and added.

    With `cached_only` missing answers are left out.
    """
    prompt_format = load_prompt_format(model)
    instructions = choose_instructions(data, answers, prompt_format.count, papers_only)
    settings = {"model": Path(model).name, "limit": LIMIT, "dtype": "bfloat16"}
    known = _read(cache, settings)
    missing = [instruction for instruction in instructions if instruction not in known]
    if missing and not cached_only:
        report(f"{len(missing)} answers to generate")
        prompts = [prompt_format.encode(instruction, text) for _, instruction, text in missing]
        answered = generate(model, [(ids, LIMIT) for ids in prompts])
        for number, (row, finished) in enumerate(answered, 1):
            answer = _answer(prompt_format, missing[row], len(prompts[row]), finished)
            known[answer.application, answer.instruction, answer.input] = answer
            if number % SAVE_EVERY == 0 or number == len(missing):
                stored = {"settings": settings, "answers": [asdict(answer) for answer in known.values()]}
                written = cache.with_suffix(".part")  # a run that is killed meanwhile leaves the last complete file
                written.write_text(json.dumps(stored, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
                os.replace(written, cache)
                report(f"{number} of {len(missing)}")
    return [known[instruction] for instruction in instructions if instruction in known]


def generate(model: str, prompts: Sequence[tuple[Sequence[int], int]]) -> Iterator[tuple[int, FinishedRow]]:
    """Generate greedy answers in bfloat16 to prompts (ids, limit); yields (the prompt's position, its answer)."""
    engine = Engine(load_model(model, dtype="bfloat16"), KV_BUDGET_BYTES)
    waiting = deque(DecodingRequest(str(row), tuple(ids), limit) for row, (ids, limit) in enumerate(prompts))
    while waiting or engine.rows:
        engine.insert([waiting.popleft() for _ in range(min(ROWS - len(engine.rows), len(waiting)))])
        for finished in engine.step():
            yield int(finished.id), finished


def _answer(
    prompt_format: PromptFormat, instruction: Instruction, prompt_tokens: int, finished: FinishedRow
) -> RealAnswer:
    return RealAnswer(
        *instruction,
        input_tokens=prompt_format.count(instruction[2]),
        prompt_tokens=prompt_tokens,
        generated_tokens=len(finished.generated_ids),
        cut=finished.reason == "limit",
        text=prompt_format.decode(finished.generated_ids),
    )


def _read(cache: Path, settings: dict[str, Any]) -> dict[Instruction, RealAnswer]:
    if not cache.exists():
        return {}
    stored = json.loads(cache.read_text(encoding="utf-8"))
    if stored["settings"] != settings:
        raise ValueError(f"{cache} has answers of {stored['settings']}, not of {settings}: name another file")
    answers = [RealAnswer(**answer) for answer in stored["answers"]]
    return {(answer.application, answer.instruction, answer.input): answer for answer in answers}


@click.command(help=__doc__)
@answer_options
@click.option("--number", default=4200, show_default=True, help="Answers, as many to each data set.")
def main(model: str, cache: Path, data: Path | None, number: int) -> None:
    """Generate the missing answers to the papers' tasks."""
    answers = load_answers(cache, model, data, number, click.echo, papers_only=True)
    cut = sum(answer.cut for answer in answers)
    click.echo(f"{len(answers)} answers, {cut} of them cut off at {LIMIT} tokens")


if __name__ == "__main__":
    main()
