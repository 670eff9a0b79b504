"""The bodies that `magnus submit` sends, and what it prints of an answer."""

from io import StringIO

import click
import pytest

from cli.commands.client.request_commands import _answer_line, _body, _from_lines

NOTHING = dict.fromkeys(
    ("instructions", "application", "model", "max_output_tokens", "temperature", "priority", "deadline_s")
)


def test_only_the_options_that_were_given_are_sent() -> None:
    assert _body({**NOTHING, "input": ("apple", "river")}) == {"input": "apple river"}
    assert _body({**NOTHING, "input": ("apple",), "application": "news", "priority": 0, "max_output_tokens": 5}) == {
        "input": "apple",
        "max_output_tokens": 5,
        "metadata": {"application": "news"},
        "magnus": {"priority": 0},
    }


@pytest.mark.parametrize("line", ["nonsense", "[]", '{"text": "a"}'])
def test_a_line_that_is_no_body_is_named(line: str) -> None:
    file = StringIO('{"input": "a"}\n\n' + line)
    file.name = "requests.jsonl"
    with pytest.raises(click.UsageError, match=r"line 3 of requests\.jsonl"):
        _from_lines(file)


def test_a_request_without_an_answer_is_printed_with_its_state_and_its_error() -> None:
    assert _answer_line({"id": "resp_1", "status": "cancelled", "error": None}) == "resp_1 cancelled"
    failed = {"id": "resp_1", "status": "failed", "error": {"message": "Too late."}}
    assert _answer_line(failed) == "resp_1 failed Too late."
