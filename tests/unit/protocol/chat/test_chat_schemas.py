"""What the older calls accept."""

import pytest
from pydantic import ValidationError

from protocol.chat.chat_schemas import CreateChatCompletion, CreateCompletion


def test_an_empty_prompt_is_refused() -> None:
    empty: list[object] = ["", [], [""], [[]], {}, 5]
    for prompt in empty:
        with pytest.raises(ValidationError):
            CreateCompletion.model_validate({"model": "words", "prompt": prompt})


CALLED = {"name": "weather", "arguments": "{}"}
QUESTION = {"role": "user", "content": "a"}
ANSWER = {"role": "assistant", "content": "b"}


@pytest.mark.parametrize(
    "messages", [[ANSWER], [{"role": "user", "content": " "}], [{"role": "system", "content": " "}]]
)
def test_a_chat_that_asks_nothing_is_refused(messages: list[dict[str, str]]) -> None:
    with pytest.raises(
        ValidationError, match="one message must be the user's, the system's or a tool's, and not be empty"
    ):
        CreateChatCompletion.model_validate({"model": "words", "messages": messages})


def test_hints_and_neutral_values_of_other_services_ask_for_nothing() -> None:
    hint = {"cache_control": {"type": "ephemeral"}}
    content = [{"type": "text", "text": "a", **hint}]
    thought = {**ANSWER, "reasoning": "why", "provider_specific_fields": {"a": 1}, "reasoning_details": None}
    neutral = {"max_tokens": -1, "priority": 0, "echo": False, "truncate_prompt_tokens": None}
    neutral |= {"spaces_between_special_tokens": True, "max_completion_tokens": -1}
    messages = [{"role": "user", "content": content, **hint}, thought, QUESTION]
    read = CreateChatCompletion.model_validate({"model": "words", "messages": messages, **neutral})
    assert (read.max_tokens, read.max_completion_tokens) == (None, None)
    assert [turn.turn.reasoning for turn in read.messages] == [None, "why", None]
    assert [message.text for message in read.messages] == ["a", "b", "a"]


@pytest.mark.parametrize("other", [{"max_tokens": -2}, {"max_tokens": 0}, {"priority": 1}, {"echo": True}])
def test_values_that_are_not_neutral_are_refused_by_name(other: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=next(iter(other))):
        CreateChatCompletion.model_validate({"model": "words", "messages": [QUESTION], **other})


def test_a_chat_may_end_with_an_answer_but_not_with_calls_without_results() -> None:
    CreateChatCompletion.model_validate({"model": "words", "messages": [QUESTION, ANSWER]})
    called = {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": CALLED}]}
    with pytest.raises(ValidationError, match="the results of the last message's calls are missing"):
        CreateChatCompletion.model_validate({"model": "words", "messages": [QUESTION, called]})


@pytest.mark.parametrize("field", ["refusal", "tool_calls", "function_call", "audio"])
def test_history_that_says_more_than_text_is_refused(field: str) -> None:
    answer = {"role": "assistant", "content": "a", field: [{"id": "1"}]}
    with pytest.raises(ValidationError):
        CreateChatCompletion.model_validate({"model": "words", "messages": [answer, {"role": "user", "content": "b"}]})


@pytest.mark.parametrize(
    ("field", "accepted", "refused"),
    [
        ("repetition_penalty", [0.01, 1.0, 100, None], [0, -1, 101, float("nan"), "1"]),
        ("min_p", [0, 0.5, 1, None], [-0.1, 1.1, float("inf")]),
        ("top_k", [-1, 0, 5, None], [-2, 2**31, 1.5]),
        ("min_tokens", [0, 7, None], [-1, 2**31]),
        ("stop_token_ids", [[], [0, 2**31 - 1], None], [[-1], [2**31], [True], 5]),
        ("ignore_eos", [True, False, None], [1, "true"]),
        ("skip_special_tokens", [True, None], [False]),
    ],
)
def test_extensions_of_others_are_accepted_within_their_bounds(
    field: str, accepted: list[object], refused: list[object]
) -> None:
    asked = {"model": "words", "prompt": "eins"}
    for value in accepted:
        CreateCompletion.model_validate(asked | {field: value})
    for value in refused:
        with pytest.raises(ValidationError):
            CreateCompletion.model_validate(asked | {field: value})


def test_a_stream_has_options_and_nothing_else_has() -> None:
    asked = {"model": "words", "prompt": "eins", "stream_options": {"include_usage": True}}
    options = CreateCompletion.model_validate(asked | {"stream": True}).stream_options
    assert options is not None
    assert options.include_usage
    with pytest.raises(ValidationError, match="only with stream"):
        CreateCompletion.model_validate(asked)
