"""Which lines are examples to train on."""

from io import StringIO
from typing import Any

import click
import pytest

from cli.commands.learned_commands import Example, _example, _examples


@pytest.mark.parametrize(
    ("fields", "example"),
    [
        ({"instructions": "Repeat.", "input": "a", "output": "a"}, Example("Repeat.", "a", "a")),
        ({"instruction": "Repeat.", "input": "a", "output_tokens": 7}, Example("Repeat.", "a", 7)),
        ({"instruction": "R", "input": "a", "output": "a", "application": "x"}, Example("R", "a", "a", "x")),
    ],
)
def test_a_line_gives_the_answer_or_its_length(fields: dict[str, Any], example: Example) -> None:
    assert _example(fields) == example


@pytest.mark.parametrize("line", ["nonsense", "{}", '{"instructions": 1, "input": "a", "output": "a"}'])
def test_a_line_that_is_no_example_is_named(line: str) -> None:
    data = StringIO(f"\n{line}\n")
    data.name = "answers.jsonl"
    with pytest.raises(click.UsageError, match=r"line 2 of answers\.jsonl"):
        list(_examples(data))


@pytest.mark.parametrize("output", ["", 0])
def test_an_empty_answer_teaches_nothing(output: object) -> None:
    with pytest.raises(TypeError, match="positive number"):
        _example({"instructions": "R", "input": "a", "output": output})
