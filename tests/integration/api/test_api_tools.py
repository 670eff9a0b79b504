"""Functions that an answer may call, in chats and in responses, with a chat template that knows tools."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inference.prompts.model_prompt import ModelPrompt
from inference.tool_calls import required_format
from request_body import RequestBody, StoredToolChoice, read_body
from settings import BUNDLED_MODEL, Settings
from tests.integration.answering_worker import answering, events
from tests.integration.api_service import UNREADABLE, Api, cannot_read
from tests.integration.conftest import running_api
from tests.unit.inference.tool_template import TOOL_TEMPLATE

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "weather", "description": "The weather", "parameters": PARAMETERS, "strict": True}
CHAT = {
    "model": "tools",
    "messages": [{"role": "user", "content": "Weather?"}],
    "tools": [{"type": "function", "function": FUNCTION}],
}
RESPONSE = {"model": "tools", "input": "Weather?", "tools": [{"type": "function", **FUNCTION}]}
CALLS = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
ARGUMENTS = {"city": "Köln"}


@pytest.fixture(scope="module")
def tool_settings(module_database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    model = tmp_path_factory.mktemp("model") / "tools"
    model.mkdir()
    shutil.copy(Path(BUNDLED_MODEL) / "tokenizer.json", model)
    (model / "chat_template.jinja").write_text(TOOL_TEMPLATE)
    return Settings(database_url=module_database_url, model=str(model), wait_s=5)


@pytest.fixture
def tools(tool_settings: Settings) -> Iterator[Api]:
    for api in running_api(tool_settings):
        api.sql("delete from requests")
        yield api


def engine_schema(body: RequestBody) -> Any:
    held_to = required_format(body)
    return json.loads((held_to and held_to.schema) or "null")


def test_a_chat_that_calls_a_function_goes_on_with_its_result(tools: Api) -> None:
    with answering(tools, CALLS):
        [choice] = tools.call("POST", "/v1/chat/completions", json=CHAT).json["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    [call] = choice["message"]["tool_calls"]
    assert (call["type"], call["function"]["name"]) == ("function", "weather")
    assert json.loads(call["function"]["arguments"]) == ARGUMENTS
    result = {"role": "tool", "tool_call_id": call["id"], "content": "rain"}
    history = [*CHAT["messages"], choice["message"], result]
    with answering(tools, "It rains."):
        [choice] = tools.call("POST", "/v1/chat/completions", json=CHAT | {"messages": history}).json["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("It rains.", "stop")
    [row] = tools.sql("select body, needs, prompt_tokens from requests order by arrived_at desc limit 1")
    assert row.needs == ["tools"]
    assert [turn["role"] for turn in row.body["messages"]] == ["user", "assistant", "tool"]


def test_a_schema_keeps_the_order_of_its_properties_from_the_client_to_the_engine(tools: Api) -> None:
    properties = {name: {"type": "string"} for name in ("reasoning", "answer", "aside", "z")}
    schema = {"type": "object", "properties": properties, "required": ["reasoning", "answer"]}
    order = list(properties)
    function = {"type": "function", "name": "think", "parameters": schema}
    named = {"type": "json_schema", "name": "thought", "schema": schema}
    asked = RESPONSE | {"tools": [function], "text": {"format": named}, "background": True}
    made = tools.call("POST", "/v1/responses", json=asked).json
    for shown in (made, tools.call("GET", f"/v1/responses/{made['id']}").json):
        assert list(shown["tools"][0]["parameters"]["properties"]) == order
        assert list(shown["text"]["format"]["schema"]["properties"]) == order
    [row] = tools.sql("select instructions, input, body, prompt_tokens from requests")
    body = read_body(row.body)
    forced = body.model_copy(update={"format": None, "tool_choice": StoredToolChoice(mode="required")})
    assert list(engine_schema(body)["properties"]) == order
    assert list(engine_schema(forced)["properties"]["arguments"]["properties"]) == order
    prompt_format = tools.client.application.extensions["magnus"].prompt_limits.prompt_format
    rendered = ModelPrompt(row.instructions, row.input, body).encode(prompt_format)
    text = prompt_format.decode(rendered)
    assert text.index("reasoning") < text.index("answer") < text.index("aside")
    assert len(rendered) == row.prompt_tokens


def test_a_response_that_calls_a_function_goes_on_with_its_result(tools: Api) -> None:
    with answering(tools, f"I look.{CALLS}"):
        first = tools.call("POST", "/v1/responses", json=RESPONSE).json
    message, call = first["output"]
    assert message["content"][0]["text"] == "I look."
    assert (call["type"], call["name"], json.loads(call["arguments"])) == ("function_call", "weather", ARGUMENTS)
    assert first["tools"][0]["name"] == "weather"
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
    with answering(tools, "It rains."):
        items = [{"role": "user", "content": "Weather?"}, message, call, output]
        by_hand = tools.call("POST", "/v1/responses", json=RESPONSE | {"input": items}).json
        by_id = tools.call(
            "POST", "/v1/responses", json=RESPONSE | {"input": [output], "previous_response_id": first["id"]}
        ).json
    assert by_hand["usage"] == by_id["usage"]
    listed = tools.call("GET", f"/v1/responses/{by_id['id']}/input_items?order=asc").json["data"]
    assert [item["type"] for item in listed] == ["message", "message", "function_call", "function_call_output"]


def test_a_streamed_chat_says_its_text_and_then_its_calls(tools: Api) -> None:
    with answering(tools, f"I look.{CALLS}"):
        chunks = events(tools.call("POST", "/v1/chat/completions", json=CHAT | {"stream": True}))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("content") or "" for delta in deltas) == "I look."
    [called] = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert (called["index"], json.loads(called["function"]["arguments"])) == (0, ARGUMENTS)
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("path", "body", "choice"),
    [
        ("/v1/chat/completions", CHAT, "required"),
        ("/v1/chat/completions", CHAT, {"type": "function", "function": {"name": "weather"}}),
        ("/v1/responses", RESPONSE, "required"),
        ("/v1/responses", RESPONSE, {"type": "function", "name": "weather"}),
    ],
)
def test_a_required_call_needs_an_engine_that_holds_answers_to_formats(
    tools: Api, path: str, body: dict[str, Any], choice: Any
) -> None:
    with answering(tools, '{"name": "weather", "arguments": {"city": "Köln"}}'):
        answer = tools.call("POST", path, json=body | {"tool_choice": choice})
    assert answer.status_code == 200
    assert "call_" in answer.get_data(as_text=True)
    [row] = tools.sql("select needs, body -> 'tool_choice' as choice from requests")
    assert set(row.needs) == {"tools", "response_format"}
    assert row.choice["mode"] == "required"


FORCED = {"tool_choice": "required"}
CUT = [
    ('{"name": "weather", "arguments": {"city": "Kö', '{"city": "Kö'),
    ('{"name": "weather", "arguments": {"city": "Köln"}', '{"city": "Köln"}'),
    ('{"name": "wea', ""),
    ("{", ""),
]


@pytest.mark.parametrize(("text", "arguments"), CUT)
def test_a_forced_call_that_its_limit_cuts_is_a_call_with_what_there_is(tools: Api, text: str, arguments: str) -> None:
    with answering(tools, text, status="incomplete"):
        [choice] = tools.call("POST", "/v1/chat/completions", json=CHAT | FORCED).json["choices"]
        chunks = events(tools.call("POST", "/v1/chat/completions", json=CHAT | FORCED | {"stream": True}))
        response = tools.call("POST", "/v1/responses", json=RESPONSE | FORCED).json
        seen = events(tools.call("POST", "/v1/responses", json=RESPONSE | FORCED | {"stream": True}))
    [call] = choice["message"]["tool_calls"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (None, "length")
    assert call["function"] == {"name": "weather", "arguments": arguments}
    streamed = [chunk["choices"][0] for chunk in chunks]
    assert [one["delta"]["tool_calls"][0]["function"] for one in streamed if "tool_calls" in one["delta"]] == [
        call["function"]
    ]
    assert streamed[-1]["finish_reason"] == "length"
    for shown in (response, seen[-1]["response"]):
        [item] = shown["output"]
        assert (item["type"], item["status"], item["arguments"]) == ("function_call", "incomplete", arguments)
        assert shown["incomplete_details"] == {"reason": "max_output_tokens"}


@pytest.mark.parametrize(
    "arguments", ['"not json"', "NaN", "1e999", "[1]", "null", '{"city": NaN}', '{"city": Infinity}']
)
def test_arguments_that_are_no_json_object_are_no_call(tools: Api, arguments: str) -> None:
    text = f'{{"name": "weather", "arguments": {arguments}}}'
    with answering(tools, text):
        auto = tools.call("POST", "/v1/chat/completions", json=CHAT).json["choices"][0]
        forced = tools.call("POST", "/v1/chat/completions", json=CHAT | FORCED).json["choices"][0]
    for choice in (auto, forced):
        assert (choice["message"]["content"], choice["message"]["tool_calls"]) == (text, None)
        assert choice["finish_reason"] == "stop"


HALF_EMOJI = CALLS.replace("Köln", "\\ud83d")


def test_half_an_emoji_in_arguments_is_answered_streamed_listed_and_continued(tools: Api) -> None:
    with answering(tools, HALF_EMOJI):
        chat = tools.call("POST", "/v1/chat/completions", json=CHAT).json["choices"][0]["message"]["tool_calls"][0]
        chunks = events(tools.call("POST", "/v1/chat/completions", json=CHAT | {"stream": True}))
        response = tools.call("POST", "/v1/responses", json=RESPONSE).json
        seen = events(tools.call("POST", "/v1/responses", json=RESPONSE | {"stream": True}))
        output = {"type": "function_call_output", "call_id": response["output"][0]["call_id"], "output": "rain"}
        asked = RESPONSE | {"input": [output], "previous_response_id": response["id"]}
        assert tools.call("POST", "/v1/responses", json=asked).status_code == 200
    assert json.loads(chat["function"]["arguments"]) == {"city": "\ufffd"}
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert seen[-1]["type"] == "response.completed"
    listed = tools.call("GET", "/v1/responses").json["data"]
    assert json.loads(response["output"][0]["arguments"]) == {"city": "\ufffd"}
    assert response["id"] in {one["id"] for one in listed}


def test_an_answer_that_cannot_be_read_is_an_error_of_its_own_in_a_list(
    tools: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(tools, "It rains."):
        bad, good = (tools.call("POST", "/v1/responses", json=RESPONSE).json["id"] for _ in range(2))
    tools.sql("update requests set output_text = :text where id = :id", text=UNREADABLE, id=bad)
    cannot_read(monkeypatch)
    shown = tools.call("GET", f"/v1/responses/{bad}")
    assert (shown.status_code, shown.json["error"]["code"]) == (200, "unreadable_answer")
    assert {one["id"] for one in tools.call("GET", "/v1/responses").json["data"]} == {bad, good}


def test_without_a_choice_the_model_is_not_told_of_the_tools(tools: Api) -> None:
    with answering(tools, CALLS):
        answer = tools.call("POST", "/v1/chat/completions", json=CHAT | {"tool_choice": "none"}).json
    assert answer["choices"][0]["message"]["content"] == CALLS
    [row] = tools.sql("select needs from requests")
    assert row.needs == []


def test_at_most_one_call_is_given_where_more_are_not_wanted(tools: Api) -> None:
    with answering(tools, CALLS * 2):
        two = tools.call("POST", "/v1/chat/completions", json=CHAT).json
        one = tools.call("POST", "/v1/chat/completions", json=CHAT | {"parallel_tool_calls": False}).json
    assert [len(answer["choices"][0]["message"]["tool_calls"]) for answer in (two, one)] == [2, 1]


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/chat/completions", CHAT | {"tools": [], "tool_choice": "required"}, "tool_choice"),
    ("/v1/chat/completions", CHAT | {"tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
    ("/v1/chat/completions", CHAT | {"tool_choice": "required", "ignore_eos": True}, "ignore_eos"),
    ("/v1/chat/completions", CHAT | {"tool_choice": 5}, "tool_choice"),
    (
        "/v1/chat/completions",
        CHAT | {"tool_choice": "required", "response_format": {"type": "json_object"}},
        "tool_choice",
    ),
    ("/v1/chat/completions", CHAT | {"messages": [{"role": "tool", "content": "a"}]}, "messages"),
    (
        "/v1/chat/completions",
        CHAT | {"messages": [{"role": "user", "content": "a", "tool_call_id": "x"}]},
        "messages[0].tool_call_id",
    ),
    (
        "/v1/responses",
        RESPONSE | {"tool_choice": "required", "tools": [{"type": "function", "name": "a", "parameters": {"not": {}}}]},
        "tools",
    ),
]


@pytest.mark.parametrize(("path", "body", "param"), REFUSED)
def test_tools_that_cannot_be_honoured_are_named(tools: Api, path: str, body: dict[str, Any], param: str) -> None:
    answer = tools.call("POST", path, json=body)
    assert (answer.status_code, answer.json["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", CHAT, "tools"),
        ("/v1/responses", RESPONSE, "tools"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "a"}, {"role": "tool", "content": "b", "tool_call_id": "c"}]},
            "messages",
        ),
    ],
)
def test_a_model_whose_template_knows_no_tools_refuses_them_by_name(
    refusing_api: Api, path: str, body: dict[str, Any], param: str
) -> None:
    answer = refusing_api.call("POST", path, json=body | {"model": "words"})
    assert (answer.status_code, answer.json["error"]["param"]) == (400, param)
    assert "knows no tools" in answer.json["error"]["message"]


@pytest.mark.parametrize(
    ("path", "format"),
    [
        ("/v1/chat/completions", {"type": "json_schema", "json_schema": {"name": "a", "schema": {"not": {}}}}),
        ("/v1/responses", {"type": "json_schema", "name": "a", "schema": {"type": "foo"}}),
    ],
)
def test_a_schema_that_no_engine_can_keep_to_is_refused_by_name(
    refusing_api: Api, path: str, format: dict[str, Any]
) -> None:
    chat = {"messages": [{"role": "user", "content": "a"}], "response_format": format}
    body = {"model": "words"} | (chat if "chat" in path else {"input": "a", "text": {"format": format}})
    error = refusing_api.call("POST", path, json=body).json["error"]
    assert error["param"] == ("response_format" if "chat" in path else "text.format")
    assert error["code"] == "invalid_json_schema"


TIME = {"name": "time", "parameters": {"type": "object", "properties": {}}}
WEATHER = {"type": "function", "function": {"name": "weather"}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [WEATHER]}}
ALLOWED_OF_RESPONSES = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]}


def test_a_choice_allows_some_of_the_tools_or_any(tools: Api) -> None:
    chat = CHAT | {"tools": [*CHAT["tools"], {"type": "function", "function": TIME}]}
    response = RESPONSE | {"tools": [*RESPONSE["tools"], {"type": "function", **TIME}]}
    asked = [
        ("/v1/chat/completions", chat | {"tool_choice": ALLOWED}, ["weather"], "auto"),
        ("/v1/responses", response | {"tool_choice": ALLOWED_OF_RESPONSES}, ["weather"], "required"),
        ("/v1/chat/completions", chat | {"tool_choice": "any"}, ["weather", "time"], "required"),
    ]
    for path, body, offered, mode in asked:
        with answering(tools, CALLS):
            assert tools.call("POST", path, json=body).status_code == 200
        [row] = tools.sql("select body from requests order by arrived_at desc limit 1")
        stored = read_body(row.body)
        assert ([tool.name for tool in stored.tools], stored.tool_choice.mode) == (offered, mode)
    unknown = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "other"}]}
    refused = tools.call("POST", "/v1/responses", json=response | {"tool_choice": unknown})
    assert (refused.status_code, refused.json["error"]["param"]) == (400, "tool_choice")
