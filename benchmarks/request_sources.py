"""Where requests come from: files of requests with known answers, arrivals with their instants, files of bulk jobs."""

import hashlib
import json
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from cli.api_client import Client, Json
from cli.demo_workload import DemoArrival, RealRequest, poisson_arrivals, real_arrivals
from inference.toy.toy_applications import ToyRequest
from learning.predictors.length_predictor import Outcome, Prompt

TEST_SHARE = 0.2  # of texts, as the service holds out one in five
CJK = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
CRUDE_TOKEN = re.compile(rf"[{CJK}]|[^\W\d_{CJK}]+|\d|[^\w\s]|_")

LIMIT = 1 << 16  # tokens of an answer: any value above all answers works


@dataclass(frozen=True, slots=True)
class AnsweredRequest:
    """One line of a task file."""

    application: str
    task: str
    outcome: Outcome

    @property
    def is_test(self) -> bool:
        """Whether the request is in the test set: one in five texts, the same ones in every file and run."""
        return self.is_test_in(0)

    def is_test_in(self, split: int) -> bool:
        """Whether the request is in the test set of this split; each split draws other texts."""
        salt = f"test {split}" if split else "test"
        first = hashlib.sha256((salt + self.outcome.prompt.input).encode("utf-8", "replace")).digest()[:4]
        return int.from_bytes(first, "big") < TEST_SHARE * 2**32


def crude_count(text: str) -> int:
    """Count words, digits, single CJK characters and punctuation: a tokenizer that needs no model."""
    return len(CRUDE_TOKEN.findall(text))


def read_answered(data: Path) -> list[AnsweredRequest]:
    """Read every line of `*.jsonl` in `data/requests` or in `data`.

    The task stands for the application, because two files of one application may have the answers of two models to the
    same instruction, and a service serves one model.
    """
    count, folder = crude_count, data / "requests" if (data / "requests").is_dir() else data
    answered = []
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            task = row.get("task") or path.stem
            input_tokens = count(row["input"])
            prompt_tokens = count(row["instruction"]) + input_tokens
            prompt = Prompt(task, row["instruction"], row["input"], input_tokens, prompt_tokens, LIMIT)
            answered.append(AnsweredRequest(row["application"], task, Outcome(prompt, max(1, count(row["output"])))))
    return answered


# Words of a toy input. The demo's have 10; with so few, HTTP and the database are half of the work on a small machine,
# whatever the policy.
MEDIAN_WORDS = 30.0
Workload = Literal["toy", "instructions"]


def arrivals_of(workload: Workload, requests: int, rate: float, seed: int) -> list[DemoArrival]:
    """Draw Poisson arrivals at `rate` a second: toy requests, or the demo's real instructions.

    The instructions have no limits of their own, so that answers end where the model ends them.
    """
    if workload == "toy":
        return poisson_arrivals(requests, rate, seed, MEDIAN_WORDS)
    return [
        replace(arrival, request=replace(arrival.request, max_output_tokens=None))
        if isinstance(arrival.request, RealRequest)
        else arrival
        for arrival in real_arrivals(requests, rate, seed)
    ]


def write_bulk_file(path: Path, model: str, requests: Iterable[ToyRequest], metadata: Mapping[str, str] = {}) -> None:
    """Write the lines of a bulk job, one for each request; its number is the line's `custom_id`."""
    with path.open("w", encoding="utf-8") as file:
        for number, toy in enumerate(requests):
            own = {"application": toy.application, **metadata}
            body = {"model": model, "instructions": toy.instruction, "input": toy.input, "metadata": own}
            line = {"custom_id": f"{number}", "method": "POST", "url": "/v1/responses", "body": body}
            file.write(json.dumps(line) + "\n")


def start_bulk_job(client: Client, path: Path) -> Json:
    """Upload the file and create its job."""
    request = {"input_file_id": client.upload(path)["id"], "endpoint": "/v1/responses", "completion_window": "24h"}
    return client.create_batch(request, uuid.uuid4().hex)
