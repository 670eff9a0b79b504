"""Tools that an answer calls with a text in place of JSON: in chats and responses, streamed, sent back, forced."""

import json
from typing import Any

import pytest

from inference.prompts.model_prompt import template_tool
from request_body import read_body
from tests.integration.answering_worker import answering, events
from tests.integration.api.test_api_tools import engine_schema, tool_settings, tools
from tests.integration.api_service import Api

__all__ = ["tool_settings", "tools"]  # fixtures

CODE = {"name": "code", "description": "Runs Python"}
CHAT: dict[str, Any] = {
    "model": "tools",
    "messages": [{"role": "user", "content": "Compute."}],
    "tools": [{"type": "custom", "custom": CODE}],
}
RESPONSE: dict[str, Any] = {"model": "tools", "input": "Compute.", "tools": [{"type": "custom", **CODE}]}
PYTHON = 'print("Köln")\n'
CALLS = f"<tool_call>\n{json.dumps({'name': 'code', 'arguments': {'input': PYTHON}})}\n</tool_call>"


def test_a_chat_calls_a_custom_tool_with_a_text_and_goes_on_with_its_result(tools: Api) -> None:
    with answering(tools, CALLS):
        [choice] = tools.call("POST", "/v1/chat/completions", json=CHAT).json["choices"]
        chunks = events(tools.call("POST", "/v1/chat/completions", json=CHAT | {"stream": True}))
    [call] = choice["message"]["tool_calls"]
    assert (choice["finish_reason"], call["type"]) == ("tool_calls", "custom")
    assert call["custom"] == {"name": "code", "input": PYTHON}
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    [streamed] = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert (streamed["index"], streamed["type"], streamed["custom"]) == (0, "custom", call["custom"])
    result = {"role": "tool", "tool_call_id": call["id"], "content": "Köln"}
    with answering(tools, "Done."):
        history = CHAT | {"messages": [*CHAT["messages"], choice["message"], result]}
        assert tools.call("POST", "/v1/chat/completions", json=history).status_code == 200
    [row] = tools.sql("select body from requests order by arrived_at desc limit 1")
    [stored] = read_body(row.body).messages[1].tool_calls
    assert json.loads(stored.arguments) == {"input": PYTHON}


def test_a_response_calls_a_custom_tool_with_a_text_and_goes_on_with_its_result(tools: Api) -> None:
    with answering(tools, CALLS):
        first = tools.call("POST", "/v1/responses", json=RESPONSE).json
        seen = events(tools.call("POST", "/v1/responses", json=RESPONSE | {"stream": True}))
    [call] = first["output"]
    assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "code", PYTHON)
    [done] = [one for one in seen if one["type"] == "response.custom_tool_call_input.done"]
    assert (done["input"], "arguments" in done) == (PYTHON, False)
    assert "".join(one["delta"] for one in seen if one["type"].endswith("input.delta")) == PYTHON
    assert first["tools"] == [{"type": "custom", **CODE, "format": {"type": "text"}}]
    output = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "Köln"}
    with answering(tools, "Done."):
        items = [{"role": "user", "content": "Compute."}, call, output]
        by_hand = tools.call("POST", "/v1/responses", json=RESPONSE | {"input": items}).json
        asked = RESPONSE | {"input": [output], "previous_response_id": first["id"]}
        by_id = tools.call("POST", "/v1/responses", json=asked).json
    assert by_hand["usage"] == by_id["usage"]
    listed = tools.call("GET", f"/v1/responses/{by_id['id']}/input_items?order=asc").json["data"]
    assert [item["type"] for item in listed] == ["message", "custom_tool_call", "custom_tool_call_output"]
    assert listed[1]["input"] == PYTHON


@pytest.mark.parametrize(
    ("path", "body", "choice"),
    [
        ("/v1/chat/completions", CHAT, {"type": "custom", "custom": {"name": "code"}}),
        ("/v1/responses", RESPONSE, {"type": "custom", "name": "code"}),
        (
            "/v1/responses",
            RESPONSE,
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "code"}]},
        ),
    ],
)
def test_a_forced_call_of_a_custom_tool_holds_the_answer_to_it_and_shows_what_a_limit_left(
    tools: Api, path: str, body: dict[str, Any], choice: Any
) -> None:
    with answering(tools, '{"name": "code", "arguments": {"input": "print(\\"Kö', status="incomplete"):
        answer = tools.call("POST", path, json=body | {"tool_choice": choice}).json
    [call] = answer["output"] if "output" in answer else answer["choices"][0]["message"]["tool_calls"]
    assert call.get("custom", call)["input"] == 'print("Kö'
    [row] = tools.sql("select body from requests")
    assert engine_schema(read_body(row.body))["properties"]["name"] == {"const": "code"}


REGEX = {"syntax": "regex", "definition": "[a-c]+"}
LARK = {"syntax": "lark", "definition": "start: /a/"}


def test_a_grammar_of_a_custom_tool_is_a_regex_that_the_model_is_told_and_a_forced_call_is_held_to(tools: Api) -> None:
    chat = CHAT | {"tools": [{"type": "custom", "custom": CODE | {"format": {"type": "grammar", "grammar": REGEX}}}]}
    response = RESPONSE | {"tools": [{"type": "custom", **CODE, "format": {"type": "grammar", **REGEX}}]}
    for path, body in (("/v1/chat/completions", chat), ("/v1/responses", response)):
        with answering(tools, '{"name": "code", "arguments": {"input": "abc"}}'):
            assert tools.call("POST", path, json=body | {"tool_choice": "required"}).status_code == 200
        [row] = tools.sql("select body from requests order by arrived_at desc limit 1")
        stored = read_body(row.body)
        held_to = engine_schema(stored)["properties"]["arguments"]["properties"]["input"]
        assert held_to == {"type": "string", "pattern": "^(?:[a-c]+)$"}
        told = template_tool(stored.tools[0])["function"]
        assert (told["parameters"]["properties"]["input"], "custom" in told) == (held_to, False)


@pytest.mark.parametrize(
    ("path", "body", "why"),
    [
        (
            "/v1/chat/completions",
            CHAT | {"tools": [{"type": "custom", "custom": CODE | {"format": {"type": "grammar", "grammar": LARK}}}]},
            "give a regex",
        ),
        (
            "/v1/responses",
            RESPONSE | {"tools": [{"type": "custom", **CODE, "format": {"type": "grammar", **LARK}}]},
            "give a regex",
        ),
        ("/v1/responses", RESPONSE | {"tools": [{"type": "custom", **CODE, "format": {"type": "grammar"}}]}, "syntax"),
        ("/v1/chat/completions", CHAT | {"tools": [{"type": "other"}]}, "function or custom"),
    ],
)
def test_a_custom_tool_that_no_call_could_be_held_to_is_refused_and_told_why(
    tools: Api, path: str, body: dict[str, Any], why: str
) -> None:
    answer = tools.call("POST", path, json=body)
    assert answer.status_code == 400
    assert why in answer.json["error"]["message"]
