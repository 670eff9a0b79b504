"""Where requests come from: files of requests with known answers, and arrivals with their instants."""

import csv
import hashlib
import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from cli.demo_workload import DemoArrival, RealRequest, poisson_arrivals, real_arrivals
from inference.prompt_format import load_prompt_format
from inference.toy.toy_applications import APPLICATIONS, MAX_WORDS, ToyRequest, draw_request
from learning.predictors.length_predictor import Outcome, Prompt

TEST_SHARE = 0.2  # of texts, as the service holds out one in five
CRUDE = "crude"  # the tokenizer that needs no model, as --tokenizer names it
CJK = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
CRUDE_TOKEN = re.compile(rf"[{CJK}]|[^\W\d_{CJK}]+|\d|[^\w\s]|_")

TokenCount = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class AnsweredRequest:
    """One line of a task file."""

    application: str
    task: str
    outcome: Outcome

    @property
    def is_test(self) -> bool:
        """Whether it belongs to the test set: one in five texts, the same ones in every file and run."""
        return self.is_test_in(0)

    def is_test_in(self, split: int) -> bool:
        """The same for a split of this number; each split draws other texts."""
        salt = f"test {split}" if split else "test"
        first = hashlib.sha256((salt + self.outcome.prompt.input).encode("utf-8", "replace")).digest()[:4]
        return int.from_bytes(first, "big") < TEST_SHARE * 2**32


def token_counter(tokenizer: str) -> TokenCount:
    """How lengths are counted: `crude` (words, digits, single CJK characters, punctuation) or a model's tokenizer."""
    if tokenizer == CRUDE:
        return lambda text: len(CRUDE_TOKEN.findall(text))
    return load_prompt_format(tokenizer).count


def read_answered(data: Path, count: TokenCount, limit: int = 1 << 16) -> list[AnsweredRequest]:
    """Every line of `*.jsonl` in `data/requests` or in `data`.

    Predictors are told the task as the application: a service serves one model, but two files of one application may
    be answers of two models to the same instruction.
    """
    folder = data / "requests" if (data / "requests").is_dir() else data
    answered = []
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            task = row.get("task") or path.stem
            input_tokens = count(row["input"])
            prompt_tokens = count(row["instruction"]) + input_tokens
            prompt = Prompt(task, row["instruction"], row["input"], input_tokens, prompt_tokens, limit)
            answered.append(AnsweredRequest(row["application"], task, Outcome(prompt, max(1, count(row["output"])))))
    return answered


# Words of a toy input. The demo's have 10; with so few, HTTP and the database are half of the work on a small machine,
# whatever the policy.
MEDIAN_WORDS = 30.0


def arrivals_of(workload: str, requests: int, rate: float, seed: int) -> list[DemoArrival]:
    """Open-loop arrivals of about `rate` a second; a trace keeps its bursts and is sped up to that rate."""
    if workload == "toy":
        return poisson_arrivals(requests, rate, seed, MEDIAN_WORDS)
    if workload == "instructions":
        return _instructions(requests, rate, seed)
    path = Path(workload)
    return _from_trace(path, requests, rate, seed) if path.suffix == ".csv" else _from_file(path, requests, rate, seed)


def _instructions(requests: int, rate: float, seed: int) -> list[DemoArrival]:
    """The demo's real instructions without their limits, so that answers end where the model ends them."""
    return [
        replace(arrival, request=replace(arrival.request, max_output_tokens=None))
        if isinstance(arrival.request, RealRequest)
        else arrival
        for arrival in real_arrivals(requests, rate, seed)
    ]


def _from_file(path: Path, requests: int, rate: float, seed: int) -> list[DemoArrival]:
    """Requests drawn from a .jsonl with `application`, `instruction` and `input`, at Poisson instants."""
    rng = random.Random(seed)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    at_s, arrivals = 0.0, []
    for line in rng.choices(lines, k=requests):
        at_s += rng.expovariate(rate)
        request = ToyRequest(line["application"], line["instruction"], line["input"], line.get("output", ""))
        arrivals.append(DemoArrival(request, at_s))
    return arrivals


def _from_trace(path: Path, requests: int, rate: float, seed: int) -> list[DemoArrival]:
    """Toy requests at the instants of a trace; the longest answer of the trace becomes the longest toy input."""
    rng = random.Random(seed)
    with path.open(encoding="utf-8") as file:
        rows = [(float(row["arrival_s"]), int(row["output_tokens"])) for row in csv.DictReader(file)][:requests]
    first, last = rows[0][0], rows[-1][0]
    speed = len(rows) / rate / max(last - first, 1e-9)
    longest = max(tokens for _, tokens in rows)
    return [
        DemoArrival(
            draw_request(rng.choice(tuple(APPLICATIONS)), max(2, round(MAX_WORDS * tokens / longest)), rng),
            (at_s - first) * speed,
        )
        for at_s, tokens in rows
    ]
