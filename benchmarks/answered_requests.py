"""Requests with known answers from JSON lines: lengths are counted, input texts split into train and test."""

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from inference.prompt_format import load_prompt_format
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
