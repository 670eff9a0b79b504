"""Requests with known answers, and how their tokens are counted."""

import json
from pathlib import Path

import pytest

from benchmarks.inputs.request_sources import CRUDE, crude_count, read_answered, token_counter
from benchmarks.inputs.simulated_workloads import equal_shares
from settings import BUNDLED_MODEL


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


def test_a_models_tokenizer_counts_instead_of_words() -> None:
    counter = token_counter(str(BUNDLED_MODEL))
    assert counter.name == f"the tokenizer of {BUNDLED_MODEL.name}"
    assert counter.count(["Extraordinary"]) > CRUDE.count(["Extraordinary"])


@pytest.mark.parametrize(("text", "tokens"), [("two words", 2), ("x1_2", 4), ("你好", 2), ("", 0)])
def test_crude_tokens_are_words_digits_characters_and_signs(text: str, tokens: int) -> None:
    assert crude_count(text) == tokens


def test_tasks_are_drawn_alike_whatever_their_number_of_lines() -> None:
    shares = equal_shares(["a", "a", "a", "b"])
    assert shares.tolist() == pytest.approx([1 / 6, 1 / 6, 1 / 6, 1 / 2])
