"""Reads requests with known answers: our own JSON lines, fine-tuning files, logs of calls, OpenAI batches."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any

import click

from protocol.requests.client_prompt import prompt_of_turns
from request_body import StoredTurn

SUCCEEDED = 200


@dataclass(frozen=True)
class Example:
    """A request whose answer is known: the answer's text or its length in tokens; `cut`: the limit cut it off."""

    instructions: str
    input: str
    output: str | int
    application: str | None = None
    cut: bool = False


class NotAnExample(ValueError):
    """A line holds no request with a known answer."""


def read_examples(data: IO[str]) -> Iterator[Example]:
    """Yield each line's example, or one for two lines with the same custom_id. Raises click.UsageError."""
    halves: dict[str, dict[str, Any]] = {}  # by custom_id: a batch's line whose other line has not been read yet
    for number, line in enumerate(data, 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
            if not isinstance(fields, dict):
                raise NotAnExample("it is no JSON object")
            if "custom_id" not in fields:
                yield _example(fields)
            elif (other := halves.pop(str(fields["custom_id"]), None)) is None:
                halves[str(fields["custom_id"])] = fields
            elif (found := _line_of_batch({**other, **fields})) is not None:
                yield found
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            why = str(error) if isinstance(error, NotAnExample) else f"{type(error).__name__}: {error}"
            raise click.UsageError(f"line {number} of {data.name}: {why}") from error


def _line_of_batch(fields: dict[str, Any]) -> Example | None:
    """Return the example of a request and its result, or None for a request that failed."""
    if "body" not in fields or "response" not in fields:
        raise NotAnExample(f"two lines have the custom_id {fields['custom_id']!r} but are no request and its result")
    response = fields["response"]
    if response is None or response.get("status_code", SUCCEEDED) != SUCCEEDED:
        return None
    return _call(fields["body"], response["body"])


def _example(fields: dict[str, Any]) -> Example:
    if "request" in fields and "response" in fields:
        return _call(fields["request"], fields["response"])
    if "messages" in fields:
        *asked, answer = fields["messages"]
        if answer["role"] != "assistant":
            raise NotAnExample("its last message is not the assistant's")
        return _checked(*_prompt({"messages": asked}), _text(answer["content"]), fields)
    instructions = fields["instructions"] if "instructions" in fields else fields["instruction"]
    output = fields["output_tokens"] if "output_tokens" in fields else fields["output"]
    return _checked(instructions, fields["input"], output, fields)


def _call(body: Mapping[str, Any], response: Mapping[str, Any]) -> Example:
    """Return the example of a call of chat completions, completions or responses, from its body and its response."""
    choices, usage = response.get("choices") or (), response.get("usage") or {}
    tokens = usage.get("completion_tokens") or usage.get("output_tokens")
    if tokens:
        output: str | int = max(1, round(tokens / max(1, len(choices))))
    elif choices:
        output = _text(choices[0]["message"]["content"] if "message" in choices[0] else choices[0]["text"])
    else:
        raise NotAnExample("its response has neither usage nor choices")
    cut = response.get("status") == "incomplete" or any(one.get("finish_reason") == "length" for one in choices)
    return _checked(*_prompt(body), output, body.get("metadata") or {}, cut)


def _prompt(body: Mapping[str, Any]) -> tuple[str, str]:
    """Return the instructions and the user input of a call, as the API understands them."""
    if "prompt" in body:
        return "", body["prompt"]
    if isinstance(body.get("input"), str):
        return body.get("instructions") or "", body["input"]
    turns = [
        StoredTurn(role=turn["role"], content=_text(turn.get("content")))
        for turn in body.get("messages") or body["input"]
    ]
    prompt = prompt_of_turns(body.get("instructions"), turns)
    return prompt.instructions, prompt.input


def _text(content: Any) -> str:
    """Return a message's text, which may be in parts."""
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content or ""


def _checked(instructions: Any, given: Any, output: Any, named: Mapping[str, Any], cut: bool = False) -> Example:
    if not isinstance(instructions, str) or not isinstance(given, str):
        raise NotAnExample("instructions and input are not texts")
    if not isinstance(output, str | int) or output in (0, ""):
        raise NotAnExample("its output is no text and no positive number of tokens")
    return Example(instructions, given, output, named.get("application"), cut)
