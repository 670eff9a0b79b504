"""Requests with known answers, and how their tokens are counted."""

import json
from pathlib import Path

from benchmarks.inputs.request_sources import read_answered


def test_without_data_the_toy_requests_are_read_with_their_right_answers() -> None:
    answered = read_answered(None)
    assert {one.application for one in answered} == {
        "repeat", "translate", "remove", "double", "summarize", "classify",
    }  # fmt: skip
    double = next(one.outcome for one in answered if one.application == "double")
    assert double.generated_tokens == 2 * double.prompt.input_tokens  # in words


def test_each_line_of_a_data_directory_is_a_request(tmp_path: Path) -> None:
    row = {"application": "chat", "task": "t", "instruction": "Say:", "input": "a b", "output": "one two three"}
    (tmp_path / "t.jsonl").write_text(json.dumps(row) + "\n" + json.dumps({**row, "output": ""}) + "\n")
    first, second = (one.outcome for one in read_answered(tmp_path))
    assert (first.prompt.input_tokens, first.prompt.prompt_tokens, first.generated_tokens) == (2, 4, 3)
    assert second.generated_tokens == 1  # its end alone
