"""What /v1/messages accepts, and the conversation that it makes of it."""

from typing import Any

import pytest
from pydantic import ValidationError

from protocol.messages.message_schemas import CreateMessage, text_of

QUESTION: dict[str, Any] = {"role": "user", "content": "Weather?"}
ASKED: dict[str, Any] = {"model": "words", "max_tokens": 9, "messages": [QUESTION]}
CALL = {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Köln"}}
RESULT = {"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "rain"}]}
TOOL = {"name": "weather", "input_schema": {"type": "object"}}


def read(**fields: Any) -> CreateMessage:
    return CreateMessage.model_validate(ASKED | fields)


def turns(*messages: dict[str, Any]) -> list[Any]:
    return [turn for message in read(messages=[*messages]).messages for turn in message.turns]


def test_blocks_become_turns_and_results_come_before_what_the_user_says_to_them() -> None:
    thought = {"type": "thinking", "thinking": "I look.", "signature": ""}
    redacted = {"type": "redacted_thinking", "data": "EmwKAhgB"}
    answer = {"role": "assistant", "content": [thought, redacted, {"type": "text", "text": "Wait."}, CALL]}
    told = {"role": "user", "content": [RESULT, {"type": "text", "text": "And now?"}]}
    asked, called, result, last = turns(QUESTION, answer, told)
    assert (asked.role, asked.content) == ("user", "Weather?")
    assert (called.content, called.reasoning) == ("Wait.", "I look.")
    assert [(call.id, call.name, call.arguments) for call in called.tool_calls] == [
        ("call_1", "weather", '{"city":"Köln"}')
    ]
    assert (result.role, result.tool_call_id, result.content) == ("tool", "call_1", "rain")
    assert (last.role, last.content) == ("user", "And now?")


def test_results_alone_are_no_turn_of_the_user() -> None:
    answer = {"role": "assistant", "content": [CALL]}
    empty = {"type": "tool_result", "tool_use_id": "call_1", "is_error": True}
    assert [turn.role for turn in turns(QUESTION, answer, {"role": "user", "content": [RESULT, empty]})] == [
        "user",
        "assistant",
        "tool",
        "tool",
    ]


def test_a_system_prompt_of_blocks_is_one_text_of_paragraphs() -> None:
    hint = {"cache_control": {"type": "ephemeral"}}
    body = read(system=[{"type": "text", "text": "You help.", **hint}, {"type": "text", "text": "Be short."}])
    assert text_of(body.system, "\n\n") == "You help.\n\nBe short."
    assert text_of(read(system=None).system) == ""


def test_a_tool_has_a_name_of_as_many_characters_as_agents_give_it() -> None:
    name = "mcp__" + "a" * 123
    history = [
        QUESTION,
        {"role": "assistant", "content": [CALL | {"name": name}]},
        {"role": "user", "content": [RESULT]},
    ]
    body = read(messages=history, tools=[TOOL | {"name": name}], tool_choice={"type": "tool", "name": name})
    assert [function.name for function in body.functions] == [name]
    with pytest.raises(ValidationError, match="name"):
        read(tools=[TOOL | {"name": name + "a"}])


def test_null_fields_are_as_if_left_out() -> None:
    names = [name for name, field in CreateMessage.model_fields.items() if not field.is_required()]
    assert read(**dict.fromkeys(names)) == read()


@pytest.mark.parametrize(
    ("choice", "stored"),
    [
        ({"type": "auto"}, ("auto", None)),
        ({"type": "any", "disable_parallel_tool_use": True}, ("required", None)),
        ({"type": "tool", "name": "weather"}, ("required", "weather")),
        ({"type": "none"}, ("none", None)),
    ],
)
def test_a_choice_of_tools_is_stored_as_a_chats(choice: dict[str, Any], stored: tuple[str, str | None]) -> None:
    made = read(tools=[TOOL], tool_choice=choice).tool_choice
    assert made is not None
    assert (made.stored.mode, made.stored.function) == stored


@pytest.mark.parametrize(
    ("fields", "effort"),
    [
        ({}, None),
        ({"thinking": {"type": "disabled"}}, "none"),
        ({"thinking": {"type": "adaptive"}}, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, "medium"),
        ({"output_config": {"effort": "max"}}, "xhigh"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}, "output_config": {"effort": "low"}}, "low"),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}, "none"),
    ],
)
def test_thinking_is_asked_for_as_an_effort(fields: dict[str, Any], effort: str | None) -> None:
    assert read(**fields).effort == effort


IMAGE = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "9"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"role": "user", "content": " "}]}, "user's and not be empty"),
        ({"messages": [{"role": "user", "content": []}]}, "user's and not be empty"),
        ({"messages": [{"role": "user", "content": 5}]}, "must be a text or a list"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "images and documents are not read"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "images and documents are not read"),
        ({"messages": [{"role": "user", "content": [{"type": ["text"]}]}]}, "must be of type"),
        ({"messages": [{"role": "user", "content": [CALL]}]}, "no block of type tool_use"),
        ({"messages": [{"role": "user", "content": [{"type": "redacted_thinking"}]}]}, "redacted_thinking>.data"),
        ({"messages": [QUESTION, {"role": "assistant", "content": [RESULT]}]}, "no block of type tool_result"),
        ({"messages": [QUESTION, {"role": "assistant", "content": [CALL]}]}, "results of the last message's calls"),
        ({"messages": [QUESTION, {"role": "assistant", "content": []}]}, "last message must not be empty"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "role"),
        ({"messages": [{"role": "user", "content": "a\0"}]}, "NUL"),
        ({"messages": [QUESTION] * 1001}, "messages"),
        ({"system": 5}, "system"),
        ({"tools": [TOOL | {"type": "function"}]}, "such as web_search_20250305, which do not run here"),
        ({"tools": [{"name": "weather"}]}, "input_schema"),
        ({"tools": [TOOL | {"input_schema": "object"}]}, "input_schema"),
        ({"tools": [TOOL] * 129}, "tools"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tool_choice": {"type": "tool"}}, "has a name"),
        ({"tool_choice": {"type": "auto", "name": "weather"}}, "has a name"),
        ({"stop_sequences": ["a"] * 17}, "stop_sequences"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"temperature": "1"}, "temperature"),
        ({"top_k": -2}, "top_k"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "budget_tokens"),
        ({"metadata": {"user_id": "a" * 513}}, "user_id"),
        ({"mcp_servers": []}, "mcp_servers"),
    ],
)
def test_what_is_wrong_is_refused_by_name(fields: dict[str, Any], where: str) -> None:
    with pytest.raises(ValidationError, match=where):
        read(**fields)
