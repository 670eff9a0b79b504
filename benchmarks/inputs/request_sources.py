"""The sources of requests: requests with known answers, arrivals with their instants, files of bulk jobs."""

import hashlib
import json
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, TypeVar

import click
from pydantic import ValidationError
from tokenizers import Tokenizer

from cli.api_client import Client, Json
from cli.demo.demo_workload import DemoArrival, DemoRequest, RealRequest, poisson_arrivals, real_arrivals
from inference.toy.toy_applications import toy_requests
from learning.features.length_predictor import Outcome, Prompt
from settings import read_settings

Command = TypeVar("Command", bound=Callable[..., Any])
TEST_SHARE = 0.2  # this share of the texts is the test set, because the service also holds out one in five
CJK = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
CRUDE_TOKEN = re.compile(rf"[{CJK}]|[^\W\d_{CJK}]+|\d|[^\w\s]|_")

LIMIT = 1 << 16  # the most tokens of an answer; any value above the longest answer works
# Without a data directory this many toy requests are drawn, of which 80 % train a predictor (the papers train on 2,000
# of each task). Their median of 60 words gives answers of tens to hundreds of tokens, as the papers' tasks have.
OWN_REQUESTS, OWN_MEDIAN_WORDS = 12_000, 60.0
OWN = "the repository's toy requests, because no --data was given"


@dataclass(frozen=True, slots=True)
class AnsweredRequest:
    """A request with its answer's length, from one line of a task file."""

    application: str
    task: str
    outcome: Outcome

    @property
    def is_test(self) -> bool:
        """Return whether the request is in the test set: one in five texts, the same texts in every file and run."""
        return self.is_test_in(0)

    def is_test_in(self, split: int) -> bool:
        """Return whether the request is in the test set of this split; each split draws other texts."""
        salt = f"test {split}" if split else "test"
        first = hashlib.sha256((salt + self.outcome.prompt.input).encode("utf-8", "replace")).digest()[:4]
        return int.from_bytes(first, "big") < TEST_SHARE * 2**32


@dataclass(frozen=True, slots=True)
class TokenCounter:
    """Counts the tokens of texts; `name` names the tokenizer."""

    name: str
    count: Callable[[Sequence[str]], list[int]]


# A counter that needs no model.
CRUDE = TokenCounter(
    "words, digits, CJK characters and punctuation", lambda texts: [len(CRUDE_TOKEN.findall(text)) for text in texts]
)


# `data` has the requests of `read_answered`, the papers' programs also other lengths.
data_option = click.option(
    "--data", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Real requests and lengths."
)


def tokenizer_option(command: Command) -> Command:
    """Give a command `--tokenizer`; its function gets a `TokenCounter` as `tokens`."""
    text = "A model directory or fetched model whose tokenizer counts; smollm2 if fetched, else words and punctuation."
    option = click.option("--tokenizer", "tokens", callback=lambda *given: token_counter(given[-1]), help=text)
    return option(command)


def token_counter(model: str | None) -> TokenCounter:
    """Return a counter with this model's tokenizer; without a model with SmolLM2's if it was fetched, else CRUDE."""
    if model is None:
        try:
            model = read_settings(model="smollm2").model
        except ValidationError:
            return CRUDE
    tokenizer = Tokenizer.from_file(str(Path(read_settings(model=model).model) / "tokenizer.json"))

    def count(texts: Sequence[str]) -> list[int]:
        return [len(encoded) for encoded in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    return TokenCounter(f"the tokenizer of {Path(model).name}", count)


def read_answered(data: Path | None, tokens: TokenCounter = CRUDE) -> list[AnsweredRequest]:
    """Read every line of `*.jsonl` in `data/requests` or in `data`; without data, draw the repository's toy requests.

    A prompt has its task as its application, because two files of one application may have answers of two models to the
    same instruction, and a service serves one model.
    """
    answered = []
    for task, rows in _rows_by_task(data).items():
        instructions, inputs, outputs = (
            tokens.count([row[key] for row in rows]) for key in ("instruction", "input", "output")
        )
        for row, instruction, of_input, output in zip(rows, instructions, inputs, outputs, strict=True):
            prompt = Prompt(task, row["instruction"], row["input"], of_input, instruction + of_input, LIMIT)
            answered.append(AnsweredRequest(row["application"], task, Outcome(prompt, max(1, output))))
    return answered


def _rows_by_task(data: Path | None) -> dict[str, list[Json]]:
    if data is None:
        toys = map(asdict, toy_requests(OWN_REQUESTS, 0, median_words=OWN_MEDIAN_WORDS))
        return {name: list(rows) for name, rows in groupby(sorted(toys, key=_application), _application)}
    rows_by_task: dict[str, list[Json]] = {}
    folder = data / "requests" if (data / "requests").is_dir() else data
    for path in sorted(folder.glob("*.jsonl")):
        for row in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            rows_by_task.setdefault(row.get("task") or path.stem, []).append(row)
    return rows_by_task


def _application(row: Json) -> str:
    return str(row["application"])


# The words of a median toy input. The demo's inputs have 10; with so few, HTTP and the database are half of the work on
# a small machine under any policy.
MEDIAN_WORDS = 30.0
Workload = Literal["toy", "long_toy", "instructions", "tasks"]
TOY_WORDS: dict[Workload, float] = {"toy": MEDIAN_WORDS, "long_toy": OWN_MEDIAN_WORDS}


def arrivals_of(workload: Workload, requests: int, rate: float, seed: int) -> list[DemoArrival]:
    """Draw Poisson arrivals at `rate` a second: toy requests, or the demo's real instructions.

    The instructions have no limits of their own, so that answers end where the model ends them.
    """
    if workload in TOY_WORDS:
        return poisson_arrivals(requests, rate, seed, TOY_WORDS[workload])
    return [
        replace(arrival, request=replace(arrival.request, max_output_tokens=None))
        if isinstance(arrival.request, RealRequest)
        else arrival
        for arrival in real_arrivals(requests, rate, seed)
    ]


def write_bulk_file(path: Path, model: str, requests: Iterable[DemoRequest], metadata: Mapping[str, str] = {}) -> None:
    """Write the lines of a bulk job, one for each request; a request's position is its line's `custom_id`."""
    with path.open("w", encoding="utf-8") as file:
        for number, one in enumerate(requests):
            own = {"application": one.application, **metadata}
            body = {"model": model, "instructions": one.instruction, "input": one.input, "metadata": own}
            line = {"custom_id": f"{number}", "method": "POST", "url": "/v1/responses", "body": body}
            file.write(json.dumps(line) + "\n")


def start_bulk_job(client: Client, path: Path) -> Json:
    """Upload the file and create its job."""
    request = {"input_file_id": client.upload(path)["id"], "endpoint": "/v1/responses", "completion_window": "24h"}
    return client.create_batch(request, uuid.uuid4().hex)
