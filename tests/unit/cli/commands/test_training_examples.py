"""Which lines are examples to train on, in each form in which answered requests are kept."""

import json
from io import StringIO
from typing import Any

import click
import pytest

from cli.commands.training_examples import Example, read_examples

SYSTEM, USER = {"role": "system", "content": "Translate."}, {"role": "user", "content": "chat"}
CHAT = {"model": "m", "messages": [SYSTEM, USER]}


def read(*lines: dict[str, Any] | str) -> list[Example]:
    data = StringIO("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    data.name = "answers.jsonl"
    return list(read_examples(data))


@pytest.mark.parametrize(
    ("fields", "example"),
    [
        ({"instructions": "Repeat.", "input": "a", "output": "a"}, Example("Repeat.", "a", "a")),
        ({"instruction": "Repeat.", "input": "a", "output_tokens": 7}, Example("Repeat.", "a", 7)),
        ({"instruction": "R", "input": "a", "output": "a", "application": "x"}, Example("R", "a", "a", "x")),
        ({"messages": [SYSTEM, USER, {"role": "assistant", "content": "cat"}]}, Example("Translate.", "chat", "cat")),
        (
            {"request": CHAT, "response": {"usage": {"prompt_tokens": 9, "completion_tokens": 3}}},
            Example("Translate.", "chat", 3),
        ),
        (
            {
                "request": CHAT | {"metadata": {"application": "mt"}},
                "response": {"choices": [{"message": {"content": "cat"}, "finish_reason": "length"}]},
            },
            Example("Translate.", "chat", "cat", "mt", cut=True),
        ),
        (
            {"request": {"prompt": "Once"}, "response": {"choices": [{"text": " upon"}], "usage": None}},
            Example("", "Once", " upon"),
        ),
        (
            {
                "request": {"instructions": "R", "input": "a"},
                "response": {"status": "incomplete", "usage": {"output_tokens": 4}},
            },
            Example("R", "a", 4, cut=True),
        ),
        (
            {"request": {"input": [USER | {"content": [{"type": "input_text", "text": "chat"}]}]}}
            | {"response": {"usage": {"output_tokens": 4}}},
            Example("", "chat", 4),
        ),
    ],
)
def test_a_line_gives_the_answer_or_its_length(fields: dict[str, Any], example: Example):
    assert read(fields) == [example]


def test_several_answers_of_a_call_count_with_their_mean_length():
    answers = [{"message": {"content": "cat"}}, {"message": {"content": "the cat"}}]
    line = {"request": CHAT, "response": {"choices": answers, "usage": {"completion_tokens": 5}}}
    assert read(line) == [Example("Translate.", "chat", 2)]


def test_a_batch_s_requests_are_joined_with_their_results_in_any_order():
    asked = [{"custom_id": f"l{n}", "method": "POST", "url": "/v1/chat/completions", "body": CHAT} for n in range(3)]
    done = [
        {"custom_id": f"l{n}", "response": {"status_code": 200, "body": {"usage": {"completion_tokens": n + 5}}}}
        for n in range(2)
    ]
    failed = {"custom_id": "l2", "response": {"status_code": 400, "body": {"error": {}}}}
    assert [one.output for one in read(asked[0], *done, asked[1], failed, asked[2])] == [5, 6]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("nonsense", "JSONDecodeError"),
        ("{}", "instruction"),
        ("[]", "no JSON object"),
        ('{"instructions": 1, "input": "a", "output": "a"}', "are not texts"),
        ('{"instructions": "R", "input": "a", "output": ""}', "positive number"),
        ('{"instructions": "R", "input": "a", "output_tokens": 0}', "positive number"),
        ('{"messages": [{"role": "user", "content": "a"}]}', "not the assistant's"),
        ('{"request": {"input": "a"}, "response": {}}', "neither usage nor choices"),
    ],
)
def test_a_line_that_is_no_example_is_named_with_the_reason(line: str, why: str):
    with pytest.raises(click.UsageError, match=rf"line 2 of answers\.jsonl: .*{why}"):
        read("", line)
