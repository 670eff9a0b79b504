"""/v1/messages with a chat template that thinks and knows tools: answers, streams, errors, the `anthropic` client."""

import json
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic, beta_tool
from werkzeug.serving import make_server

from models.connections.session import make_sessions
from models.tenants import tenant_limits
from models.tenants.api_keys import Scope
from protocol.client_errors import InvalidRequest
from protocol.messages.message_schemas import CreateMessage
from protocol.messages.message_submissions import message_submission
from request_body import read_body
from settings import BUNDLED_MODEL, Settings
from tests.integration.answering_worker import answering, events
from tests.integration.api_service import Api
from tests.integration.conftest import running_api
from tests.integration.database_stage import eventually
from tests.unit.inference.published_templates import QWEN3

QUESTION: dict[str, Any] = {"role": "user", "content": "Weather?"}
TOOL: Any = {
    "name": "weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
ASKED: dict[str, Any] = {"model": "thinking", "max_tokens": 64, "messages": [QUESTION], "system": "Be short."}
ANSWER = "<think>\nI look out.\n</think>\n\nIt rains."
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
PATH = "/v1/messages"


@pytest.fixture(scope="module")
def thinking_settings(module_database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    model = tmp_path_factory.mktemp("model") / "thinking"
    model.mkdir()
    shutil.copy(BUNDLED_MODEL / "tokenizer.json", model)
    (model / "chat_template.jinja").write_text(QWEN3)
    return Settings(database_url=module_database_url, model=str(model), wait_s=5)


@pytest.fixture
def thinking(thinking_settings: Settings) -> Iterator[Api]:
    for api in running_api(thinking_settings):
        api.sql("delete from requests")
        yield api


@pytest.fixture
def claude(thinking: Api) -> Iterator[Anthropic]:
    """The official client of the service, which sends its key as `x-api-key`."""
    server = make_server("127.0.0.1", 0, thinking.client.application, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    with Anthropic(base_url=f"http://127.0.0.1:{server.server_port}", api_key=thinking.key, max_retries=0) as client:
        yield client
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_message_has_thinking_text_usage_and_the_id_of_its_response(thinking: Api) -> None:
    with answering(thinking, ANSWER, output_tokens=12, reasoning_tokens=7, cached_tokens=3):
        answer = thinking.call("POST", PATH, json=ASKED).json
    assert answer["content"] == [
        {"type": "thinking", "thinking": "I look out.", "signature": ""},
        {"type": "text", "text": "It rains."},
    ]
    assert (answer["type"], answer["role"], answer["model"]) == ("message", "assistant", "thinking")
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("end_turn", None)
    counted = thinking.call("POST", f"{PATH}/count_tokens", json={k: ASKED[k] for k in ("model", "messages", "system")})
    assert answer["usage"] == {
        "input_tokens": counted.json["input_tokens"] - 3,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 3,
        "output_tokens": 12,
        "output_tokens_details": {"thinking_tokens": 7},
    }
    stored = thinking.call("GET", f"/v1/responses/{answer['id'].replace('msg_', 'resp_')}").json
    assert (stored["instructions"], stored["status"], stored["max_output_tokens"]) == ("Be short.", "completed", 64)


def test_a_message_makes_the_same_request_as_a_chat(thinking: Api) -> None:
    function = {"name": TOOL["name"], "parameters": TOOL["input_schema"]}
    options = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "max_tokens": 99}
    chat = {
        **{"model": "thinking", "messages": [{"role": "system", "content": "Be short."}, QUESTION], "stop": ["END"]},
        **{"tools": [{"type": "function", "function": function}], "tool_choice": "required"},
        **{"parallel_tool_calls": False, "metadata": {"application": "weather"}, "reasoning_effort": "none"},
    }
    message = ASKED | {
        **{"tools": [TOOL], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
        **{"stop_sequences": ["END"], "metadata": {"application": "weather", "user_id": "u"}},
        "thinking": {"type": "disabled"},
    }
    with answering(thinking, CALL):
        thinking.call("POST", "/v1/chat/completions", json=chat | options)
        thinking.call("POST", PATH, json=message | options)
    columns = "instructions, input, body, prompt_tokens, limit_tokens, application, needs"
    one, other = thinking.sql(f"select {columns} from requests order by arrived_at")
    assert one == other


@pytest.mark.parametrize(
    ("asked", "columns", "ended"),
    [
        ({}, {"status": "incomplete"}, ("max_tokens", None)),
        ({"stop_sequences": ["END"]}, {"finish_reason": "stop"}, ("stop_sequence", "END")),
        ({"stop_sequences": ["END", "STOP"]}, {"finish_reason": "stop"}, ("stop_sequence", None)),
        (
            {"stop_sequences": ["END", "STOP"]},
            {"finish_reason": "stop", "stop_string": "STOP"},
            ("stop_sequence", "STOP"),
        ),
        ({"stop_sequences": ["END"]}, {"finish_reason": "eos"}, ("end_turn", None)),
    ],
)
def test_a_message_says_why_it_ended(
    thinking: Api, asked: dict[str, Any], columns: dict[str, str], ended: tuple[str, str | None]
) -> None:
    with answering(thinking, "It rains.", **columns):
        answer = thinking.call("POST", PATH, json=ASKED | asked).json
        streamed = events(thinking.call("POST", PATH, json=ASKED | asked | {"stream": True}))
    assert (answer["stop_reason"], answer["stop_sequence"]) == ended
    assert streamed[-2]["delta"] == {"stop_reason": ended[0], "stop_sequence": ended[1]}


def test_an_answer_goes_on_with_the_assistants_last_message(thinking: Api) -> None:
    begun = [QUESTION, {"role": "assistant", "content": "It"}]
    with answering(thinking, " rains."):
        answer = thinking.call("POST", PATH, json=ASKED | {"messages": begun})
    assert answer.status_code == 200
    [row] = thinking.sql("select body from requests")
    assert read_body(row.body).continues


def test_a_stream_has_a_block_for_thinking_for_the_text_and_for_each_call(thinking: Api) -> None:
    with answering(thinking, ANSWER + CALL, cached_tokens=2):
        answer = thinking.call("POST", PATH, json=ASKED | {"tools": [TOOL], "stream": True})
        seen = events(answer)
    names = [line[7:] for line in answer.get_data(as_text=True).splitlines() if line.startswith("event: ")]
    assert names == [one["type"] for one in seen]
    assert [seen[0]["type"], seen[1]["type"]] == ["message_start", "ping"]
    assert (seen[0]["message"]["content"], seen[0]["message"]["stop_reason"]) == ([], None)
    assert [(one["index"], one["content_block"]["type"]) for one in seen if one["type"] == "content_block_start"] == [
        (0, "thinking"),
        (1, "text"),
        (2, "tool_use"),
    ]
    assert [one["index"] for one in seen if one["type"] == "content_block_stop"] == [0, 1, 2]
    deltas = [one["delta"] for one in seen if one["type"] == "content_block_delta"]
    assert "".join(delta.get("thinking", "") for delta in deltas) == "I look out."
    assert "".join(delta.get("text", "") for delta in deltas) == "It rains."
    assert json.loads("".join(delta.get("partial_json", "") for delta in deltas)) == {"city": "Köln"}
    assert (seen[-2]["delta"]["stop_reason"], seen[-2]["usage"]["cache_read_input_tokens"]) == ("tool_use", 2)
    assert seen[-1] == {"type": "message_stop"}


def test_an_answer_of_nothing_is_an_empty_text_which_may_be_sent_back(claude: Anthropic, thinking: Api) -> None:
    with answering(thinking, ""):
        answer = claude.messages.create(**ASKED)
        with claude.messages.stream(**ASKED | {"messages": [QUESTION, answer.to_param(), QUESTION]}) as stream:
            streamed = stream.get_final_message()
    assert [block.to_dict() for block in answer.content] == [{"type": "text", "text": ""}]
    assert ([block.to_dict()["text"] for block in streamed.content], streamed.stop_reason) == ([""], "end_turn")


def test_tools_that_anthropic_defines_are_left_out_and_named_or_refused_by_setting(thinking: Api) -> None:
    hosted = [{"type": "web_search_20250305", "name": "web_search"}, {"type": "mcp_toolset", "mcp_server_name": "a"}]
    with answering(thinking, ANSWER):
        answered = thinking.call("POST", PATH, json=ASKED | {"tools": hosted}).json
    assert answered["magnus"]["dropped_tools"] == ["mcp_toolset", "web_search_20250305"]
    assert read_body(thinking.sql("select body from requests")[0].body).tools == ()
    counts = [
        thinking.call("POST", f"{PATH}/count_tokens", json={"model": "thinking", "messages": [QUESTION], **tools}).json
        for tools in ({}, {"tools": hosted})
    ]
    assert counts[0] == counts[1]
    limits = thinking.client.application.extensions["magnus"].prompt_limits
    body = CreateMessage.model_validate(ASKED | {"tools": [TOOL, *hosted]})
    with pytest.raises(InvalidRequest, match=r"No tool of the types mcp_toolset, web_search_20250305 runs here"):
        message_submission(body, "t", replace(limits, refuses_hosted_tools=True))


def test_a_failed_answer_is_an_error_and_in_a_stream_its_last_event(thinking: Api) -> None:
    with answering(thinking, status="failed"):
        answer = thinking.call("POST", PATH, json=ASKED)
        streamed = events(thinking.call("POST", PATH, json=ASKED | {"stream": True}))
    assert (answer.status_code, answer.json["type"], answer.json["error"]["type"]) == (502, "error", "api_error")
    assert (streamed[-1]["type"], streamed[-1]["error"]["type"]) == ("error", "api_error")
    assert "message_stop" not in [one["type"] for one in streamed]


@pytest.mark.parametrize(
    ("told", "prompt"),
    [
        ({"thinking": {"type": "disabled"}}, "longer"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "same"),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, "same"),
    ],
)
def test_thinking_is_what_the_chat_template_is_told(thinking: Api, told: dict[str, Any], prompt: str) -> None:
    plain = thinking.call("POST", f"{PATH}/count_tokens", json={"model": "thinking", "messages": [QUESTION]}).json
    asked = {"model": "thinking", "messages": [QUESTION], **told}
    counted = thinking.call("POST", f"{PATH}/count_tokens", json=asked).json
    assert ("same" if counted == plain else "longer") == prompt


@pytest.mark.parametrize(
    ("path", "fields", "status", "kind"),
    [
        (PATH, {"max_tokens": None}, 400, "invalid_request_error"),
        (PATH, {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, 400, "invalid_request_error"),
        (PATH, {"tool_choice": {"type": "any"}}, 400, "invalid_request_error"),
        (PATH, {"messages": [{"role": "user", "content": "a " * 300_000}]}, 400, "invalid_request_error"),
        (PATH, {"model": "claude"}, 404, "not_found_error"),
        (f"{PATH}/no/thing", {}, 404, "not_found_error"),
        (f"{PATH}/batches", {}, 404, "not_found_error"),
        (PATH, {"messages": [{"role": "user", "content": "a" * 40_000_000}]}, 413, "request_too_large"),
    ],
)
def test_errors_have_the_form_of_these_calls(
    thinking: Api, path: str, fields: dict[str, Any], status: int, kind: str
) -> None:
    answer = thinking.call("POST", path, json=ASKED | fields)
    assert (answer.status_code, answer.json["type"], answer.json["error"]["type"]) == (status, "error", kind)
    assert answer.json["error"]["message"]
    assert answer.json["request_id"] == answer.headers["x-request-id"] == answer.headers["request-id"]
    other = thinking.call("POST", "/v1/chat/completions", json={}).json
    assert other["error"]["type"] == "invalid_request_error"
    assert other["status"] == 400  # elsewhere errors stay as they are


def test_a_wrong_method_a_missing_key_and_a_full_queue_are_told_in_this_form_with_their_headers(thinking: Api) -> None:
    wrong = thinking.call("GET", PATH)
    assert (wrong.status_code, wrong.allow, wrong.json["type"]) == (405, {"OPTIONS", "POST"}, "error")
    anonymous = thinking.call("POST", PATH, json=ASKED, headers={"Authorization": ""})
    assert (anonymous.status_code, anonymous.json["error"]["type"]) == (401, "authentication_error")
    assert anonymous.headers["WWW-Authenticate"] == "Bearer"
    with make_sessions(thinking.engine).begin() as session:
        tenant_limits.change_tenant(session, "small", {"queued_tokens": 1})
    refused = thinking.other_tenant("small").call("POST", PATH, json=ASKED | {"stream": True})
    assert (refused.status_code, refused.json["error"]["type"]) == (429, "rate_limit_error")
    assert int(refused.headers["Retry-After"]) > 0
    assert thinking.sql("select count(*) from requests")[0][0] == 0


def test_the_client_reads_messages_streams_calls_and_counts(claude: Anthropic, thinking: Api) -> None:
    with answering(thinking, ANSWER):
        message = claude.messages.create(**ASKED, extra_body={"temperature": 0})
        with claude.messages.stream(**ASKED) as stream:
            assert "".join(stream.text_stream) == "It rains."
            assert [block.type for block in stream.get_final_message().content] == ["thinking", "text"]
    assert [block.type for block in message.content] == ["thinking", "text"]
    history = [QUESTION, message.to_param(), QUESTION]
    with answering(thinking, CALL):
        called = claude.messages.create(**ASKED | {"messages": history}, tools=[TOOL])
        with claude.messages.stream(**ASKED, tools=[TOOL]) as stream:
            [streamed] = stream.get_final_message().content
    [use] = called.content
    assert use.type == streamed.type == "tool_use"
    assert (use.name, use.input, called.stop_reason) == ("weather", {"city": "Köln"}, "tool_use")
    assert streamed.input == use.input
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "rain"}
    history += [called.to_param(), {"role": "user", "content": [result]}]
    with answering(thinking, ANSWER):
        told = claude.messages.create(**ASKED | {"messages": history}, tools=[TOOL])
    assert told.stop_reason == "end_turn"
    counted = claude.messages.count_tokens(model="thinking", messages=history, system="Be short.", tools=[TOOL])
    assert counted.input_tokens == told.usage.input_tokens
    edits: Any = {"edits": [{"type": "clear_tool_uses_20250919"}]}
    with answering(thinking, ANSWER):  # as coding agents call it
        beta = claude.beta.messages.create(**ASKED, betas=["context-management-2025-06-27"], context_management=edits)
    assert [block.type for block in beta.content] == ["thinking", "text"]


def test_a_message_in_the_background_is_answered_at_once_and_retrieved_as_a_message(thinking: Api) -> None:
    queued = thinking.call("POST", PATH, json=ASKED, headers={"Prefer": "respond-async"})
    assert (queued.status_code, queued.headers["Preference-Applied"]) == (200, "respond-async")
    address = f"{PATH}/{queued.json['id']}"
    for shown in (queued.json, thinking.call("GET", address).json):
        assert (shown["type"], shown["content"], shown["stop_reason"]) == ("message", [], None)
    missing = thinking.other_tenant().call("GET", address)
    assert (missing.status_code, missing.json["error"]["message"]) == (
        404,
        f"Message with id '{queued.json['id']}' not found.",
    )
    [row] = thinking.sql("select body from requests")
    assert read_body(row.body).background
    with answering(thinking, ANSWER):
        eventually(lambda: thinking.call("GET", address).json["stop_reason"] == "end_turn")
    thinking.sql("update requests set status = 'failed', error = '{}'")
    failed = thinking.call("GET", address)
    assert (failed.status_code, failed.json["error"]["type"]) == (502, "api_error")


def test_the_clients_tool_runner_sends_whole_conversations(claude: Anthropic, thinking: Api) -> None:
    asked_for = []

    def weather(city: str) -> str:
        """Tells the weather."""
        asked_for.append(city)
        return "rain"

    with answering(thinking, CALL):
        runner = claude.beta.messages.tool_runner(**ASKED, tools=[beta_tool(weather)], max_iterations=2)
        assert [message.stop_reason for message in runner] == ["tool_use", "tool_use"]
    assert asked_for[0] == "Köln"
    told = thinking.sql("select body from requests order by arrived_at desc limit 1")[0].body["messages"]
    assert [turn["role"] for turn in told] == ["system", "user", "assistant", "tool"]


def test_the_client_lists_models_and_raises_its_exceptions(claude: Anthropic, thinking: Api) -> None:
    [model] = claude.models.list()
    assert (model.type, model.id, model.display_name) == ("model", "thinking", "thinking")
    assert claude.models.retrieve("thinking") == model
    with pytest.raises(anthropic.NotFoundError) as unknown:
        claude.models.retrieve("claude")
    assert unknown.value.type == "not_found_error"
    image: Any = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
    with pytest.raises(anthropic.BadRequestError, match="images and documents are not read") as refused:
        claude.messages.create(**ASKED | {"messages": [{"role": "user", "content": [image]}]})
    assert refused.value.type == "invalid_request_error"
    with pytest.raises(anthropic.AuthenticationError) as anonymous:
        claude.with_options(api_key="magnus-no").messages.create(**ASKED)
    assert anonymous.value.type == "authentication_error"
    reader = claude.with_options(api_key=thinking.with_key(scopes={Scope.read}).key)
    with pytest.raises(anthropic.PermissionDeniedError) as forbidden:
        reader.messages.create(**ASKED)
    assert forbidden.value.type == "permission_error"
